"""Mixtures: weights, orders, and where their text comes from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from sinkscope.data import DataConfig, MixedWindows, SomeWindows, TrainingOrder, Windows, prepare, training_order
from sinkscope.data.measuring_inputs import natural_windows
from sinkscope.errors import InputError

from .conftest import prose


def part(first: int, count: int) -> Windows:
    """Windows of two equal tokens: first, first + 1, …"""
    return Windows(np.repeat(np.arange(first, first + count, dtype=np.uint16), 2), 2)


def seen(order: TrainingOrder) -> list[int]:
    return [int(item["input_ids"][0]) for item in order]


def test_parts_come_in_their_weights():
    """Within four standard deviations of a binomial; 3 of 100 windows weigh as much as they are told to."""
    mixed = MixedWindows([part(0, 100), part(200, 3), part(300, 40)], [0.5, 0.3, 0.2])
    tokens = seen(TrainingOrder(mixed, 50, 100, seed=0))
    counts = Counter(0 if token < 200 else 1 if token < 300 else 2 for token in tokens)
    for number, weight in enumerate(mixed.weights):
        assert abs(counts[number] - 5000 * weight) < 4 * sqrt(5000 * weight * (1 - weight))


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Choices are drawn 16 at a time, so that items lie in several blocks."""

    def clear() -> None:
        training_order._choices.cache_clear()
        training_order._counted.cache_clear()

    monkeypatch.setattr(training_order, "DRAWN", 16)
    clear()
    yield
    monkeypatch.undo()
    clear()


@pytest.mark.usefixtures("short_blocks")
def test_every_part_is_passed_through_evenly():
    mixed = MixedWindows([part(0, 7), part(100, 5)], [0.6, 0.4])
    tokens = seen(TrainingOrder(mixed, 10, 30, seed=3))
    for windows in mixed.parts:
        own = {int(window["input_ids"][0]) for window in windows}
        mine = [token for token in tokens if token in own]
        for start in range(0, len(mine) - len(own) + 1, len(own)):
            assert set(mine[start : start + len(own)]) == own


def test_items_far_into_training_are_numbered_without_counting_all_before_again(
    short_blocks: None, monkeypatch: pytest.MonkeyPatch
):
    """More blocks than are kept: each is drawn for the count of those before once, whichever item comes first."""
    asked, draw = [], training_order._choices.__wrapped__

    def counting(weights: tuple[float, ...], seed: int, block: int) -> Tensor:
        asked.append(block)
        return draw(weights, seed, block)

    mixed = MixedWindows([part(0, 7), part(100, 5)], [0.6, 0.4])
    parts = [int(choice) for block in range(201) for choice in draw(mixed.weights, 5, block)]
    monkeypatch.setattr(training_order, "_choices", counting)
    for item in (3203, 3207, 40, 3215):
        assert mixed.turn(item, 5) == (parts[item], parts[:item].count(parts[item]))
    assert sorted(asked) == sorted([*range(200), 200, 200, 2, 200])


@pytest.mark.usefixtures("short_blocks")
def test_an_item_stands_alone_and_a_longer_run_begins_alike():
    mixed = MixedWindows([part(0, 7), SomeWindows(part(100, 50), 0.1, seed=0)], [0.25, 0.75])
    order = TrainingOrder(mixed, 10, 10, seed=1)
    forward = [order.index(item) for item in range(100)]
    assert [order.index(item) for item in reversed(range(100))] == forward[::-1]
    assert [TrainingOrder(mixed, 5, 40, seed=1).index(item) for item in range(100)] == forward
    assert [TrainingOrder(mixed, 10, 10, seed=2).index(item) for item in range(100)] != forward
    assert len({index for index in forward if index >= 7}) == 5


def test_windows_of_all_parts_stand_one_after_the_other():
    mixed = MixedWindows([part(0, 3), part(10, 2)], [0.5, 0.5])
    assert [int(window["input_ids"][0]) for window in mixed] == [0, 1, 2, 10, 11]
    assert len(mixed) == 5
    with pytest.raises(IndexError):
        mixed[5]


@pytest.fixture
def library(tmp_path: Path) -> str:
    """The name of a corpus with the domains law, letters and notes; a poem at the top is in none."""
    for domain, marks in (("law", "§"), ("letters", "@"), ("notes", "%")):
        (tmp_path / "library" / domain).mkdir(parents=True)
        for number in range(6):
            text = f"{marks} " + prose(number, 80).replace(" ", f" {marks}")
            (tmp_path / "library" / domain / f"{number}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "library" / "poem.txt").write_text(prose(99, 60), encoding="utf-8")
    return f"text:{tmp_path}/library/**/*.txt"


def config(library: str, mixed: dict[str, float], **more: object) -> DataConfig:
    fields = {"corpus": library, "tokenizer": "bpe:300", "validation_share": 0.2, "mixture": mixed} | more
    return DataConfig.model_validate(fields)


def test_a_domain_gives_its_own_training_text_and_validation_stays(library: str):
    plain = prepare(config(library, {}), context=16)
    mixed = prepare(config(library, {"law": 0.25, "letters": 0.75}), context=16)
    texts = {mixed.tokenizer.decode(windows.tokens)[0]: windows for windows in mixed.train.parts}
    assert set(texts) == {"§", "@"}
    assert dict(zip(texts, mixed.train.weights, strict=True)) == {"§": 0.25, "@": 0.75}
    assert np.array_equal(mixed.validation.tokens, plain.validation.tokens)
    every = set(map(bytes, np.lib.stride_tricks.sliding_window_view(plain.train.tokens, 12)))
    for windows in mixed.train.parts:  # what is for validation in the whole is not trained on in a domain
        assert set(map(bytes, np.lib.stride_tricks.sliding_window_view(windows.tokens[:-1], 12))) <= every
    assert mixed.tokenizer.get_vocab() == plain.tokenizer.get_vocab()


def test_another_corpus_may_be_a_part(library: str, notes: str):
    mixed = prepare(config(library, {"law": 0.5, notes: 0.5}), context=16)
    texts = [mixed.tokenizer.decode(windows.tokens) for windows in mixed.train.parts]
    assert sorted("§" in text for text in texts) == [False, True]
    assert any("text 3" in text for text in texts)


def test_the_fingerprint_knows_weights_and_texts_but_no_places(library: str, tmp_path: Path):
    halves = prepare(config(library, {"law": 0.5, "letters": 0.5}), context=16).fingerprint
    again = prepare(config(library, {"letters": 0.5, "law": 0.5}), context=8).fingerprint
    other = prepare(config(library, {"law": 0.4, "letters": 0.6}), context=16).fingerprint
    assert halves == again != other
    assert json.loads(json.dumps(halves)) == halves
    assert str(tmp_path) not in json.dumps(halves["mixture"])
    (tmp_path / "library" / "law" / "0.txt").write_text("§ another text " * 60)
    assert prepare(config(library, {"law": 0.5, "letters": 0.5}), context=16).fingerprint != halves
    assert "mixture" not in prepare(config(library, {}), context=16).fingerprint


def test_a_share_of_the_data_is_a_share_of_every_part(library: str):
    whole = prepare(config(library, {"law": 0.5, "letters": 0.5}), context=8)
    some = prepare(config(library, {"law": 0.5, "letters": 0.5}, train_share=0.2), context=8)
    for most, few in zip(whole.train.parts, some.train.parts, strict=True):
        assert len(few) == int(0.2 * len(most))


@pytest.mark.parametrize(
    ("mixed", "reason"),
    [
        ({"laws": 1.0}, "unknown domain in data.mixture 'laws': did you mean 'law'"),
        ({"law": 0.5, "letters": 0.4}, "the weights sum to 0.9, expected 1"),
        ({"law": 1.5, "letters": -0.5}, "the weight of 'letters' is -0.5"),
        ({"law": float("nan")}, "the weight of 'law' is nan"),
        ({"python:prosa": 1.0}, "unknown corpus 'python:prosa': did you mean 'python:prose'"),
        ({"poem.txt": 1.0}, "unknown domain in data.mixture 'poem.txt'"),
    ],
)
def test_mixtures_without_meaning(library: str, mixed: dict[str, float], reason: str):
    with pytest.raises(ValueError, match=reason):
        prepare(config(library, mixed), context=16)


def test_a_corpus_without_folders_has_no_domains(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(prose(number, 50), encoding="utf-8")
    with pytest.raises(InputError, match="has no folders, hence no domain 'law'"):
        prepare(config(f"text:{tmp_path}/*.txt", {"law": 1.0}), context=16)


def test_natural_text_of_one_domain(library: str, tokenizer):
    windows = natural_windows(tokenizer, 16, 4, seed=0, corpus=config(library, {}), domain="letters")
    assert all("@" in text for text in tokenizer.batch_decode(windows.input_ids))
    assert windows.description.endswith("domain 'letters'")
    with pytest.raises(InputError, match="did you mean 'letters'"):
        natural_windows(tokenizer, 16, 4, seed=0, corpus=config(library, {}), domain="leters")
