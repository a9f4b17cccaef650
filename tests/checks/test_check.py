"""The report card on models whose sink, BOS and cache are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from sinkscope.checks import SECTIONS, Card, check, check_raisable, chosen
from sinkscope.checks.bos import SECTION as BOS
from sinkscope.checks.subject import added_bos, checked_model
from sinkscope.errors import InputError
from sinkscope.model import load, load_tokenizer
from sinkscope.statistics import Interval
from sinkscope.trials import Trial
from tests.checks.test_full import random_llama

TEXTS = 6


@pytest.fixture(scope="module")
def nano() -> tuple[Any, Any]:
    """nano, which was trained with a BOS, and its tokenizer. Shared: leave both as they are."""
    return load("nano"), load_tokenizer("nano")


@pytest.fixture(scope="module")
def card(nano: tuple[Any, Any]) -> Card:
    return check(*nano, name="nano", count=TEXTS)


def rows(card: Card, section: str) -> dict[str, Any]:
    return {row.key: row for row in card.part(section).rows}


def twice(tokenizer: Any) -> Any:
    """The tokenizer, made to put two BOS before every text."""
    made = load_tokenizer("nano")
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    made.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos[0]} {bos[0]} $A", special_tokens=[bos])
    return made


def test_the_sink_of_nano_is_its_bos(card: Card) -> None:
    found = card.part("sink").first
    assert found.facts["position"] == 0
    assert found.facts["layers"] == [3]
    rate = rows(card, "sink")["rate"]
    assert rate.number.low > 5
    assert "<bos>" in rate.finding


def test_a_missing_bos_and_another_token_cost_and_two_are_priced(card: Card) -> None:
    found = rows(card, "bos")
    assert card.part("bos").first.facts["tokenizer_adds"] == 1
    assert found["no-BOS"].number.low > 0
    assert found["another-token"].number.low > 0
    assert abs(found["two-BOS"].number.value) < found["no-BOS"].number.value
    assert "one-BOS" not in found
    assert not card.raises("bos-twice")


@pytest.mark.slow
def test_a_bos_in_front_is_read_as_in_the_text(nano: tuple[Any, Any]) -> None:
    model, tokenizer = nano
    card = check(model, tokenizer, count=4, only=["bos"])
    plain = checked_model("nano", model, tokenizer, count=4).sets[0].plain.ids
    losses = []
    for front in (1, 0):
        ids = torch.cat([torch.full((4, front), tokenizer.bos_token_id), plain], 1)
        with torch.no_grad():
            logs = model(ids).logits[:, front:-1].double().log_softmax(-1)
        losses.append(-logs.gather(-1, plain[:, 1:, None])[..., 0].mean(1))
    expected = (losses[1] - losses[0]).tolist()
    assert rows(card, "bos")["no-BOS"].values == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_two_bos_are_found(nano: tuple[Any, Any]) -> None:
    model, tokenizer = nano
    double = twice(tokenizer)
    assert added_bos(double) == 2
    card = check(model, double, count=4, only=["bos"])
    assert card.raises("bos-twice")
    assert card.part("bos").first.facts["tokenizer_adds"] == 2
    assert {"no-BOS", "one-BOS"} <= rows(card, "bos").keys()
    assert "one BOS" in card.part("bos").advice


@pytest.mark.slow
def test_a_template_that_writes_a_bos_is_found_beside_a_tokenizer_that_adds_one(nano: tuple[Any, Any]) -> None:
    model, tokenizer = nano[0], load_tokenizer("nano")
    tokenizer.chat_template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    card = check(model, tokenizer, count=4, only=["bos"])
    assert card.raises("bos-twice-chat")
    assert not card.raises("bos-twice")
    [read] = card.record["texts"]  # the section reads plain texts, whatever the template
    assert read["name"] == "plain code"
    assert set(card.part("bos").by_texts) == {"plain code"}
    both = check(model, tokenizer, count=4, only=["bos", "sink"])
    assert [each["name"] for each in both.record["texts"]] == ["code in the chat format", "plain code"]
    assert both.record["texts"][1]["sha256"] == read["sha256"]
    assert set(both.part("sink").by_texts) == {"code in the chat format"}


def test_a_chat_template_that_cannot_be_filled_is_named_and_texts_are_read_without_it(nano: tuple[Any, Any]) -> None:
    model, tokenizer = nano[0], load_tokenizer("nano")
    tokenizer.chat_template = "{{ raise_exception('roles are odd') }}"
    card = check(model, tokenizer, count=4, only=["bos", "sink"])
    assert card.raises("template-broken")
    assert "roles are odd" in rows(card, "bos")["template"].finding
    assert set(card.part("sink").by_texts) == {"code"}


def test_a_chat_template_that_refuses_an_empty_message_is_read(nano: tuple[Any, Any]) -> None:
    model, tokenizer = nano[0], load_tokenizer("nano")
    tokenizer.chat_template = "<bos>{{ messages[0].content or raise_exception('say something') }}"
    sets = checked_model("nano", model, tokenizer, count=4).sets
    assert [each.name for each in sets] == ["code in the chat format"]


def test_a_bos_beyond_the_vocabulary_is_why_its_section_does_not_run(nano: tuple[Any, Any]) -> None:
    model, tokenizer = nano[0], load_tokenizer("nano")
    tokenizer.add_special_tokens({"bos_token": "<start>"})
    card = check(model, tokenizer, count=4, only=["bos"])
    assert "BOS <start> (id 2048) is outside the vocabulary of 2048" in card.part("bos").first.missing


def test_fewer_bits_cost_more_and_hold_less(card: Card) -> None:
    found = rows(card, "cache")
    costs = [found[f"kv{bits}"].number.value for bits in (8, 4, 2)]
    held = [found[f"kv{bits}"].of_16 for bits in (8, 4, 2)]
    assert costs == sorted(costs)
    assert held == sorted(held, reverse=True)
    assert 0.5 < held[0] < 0.7
    assert found["kv8"].word == "free"
    # Keys and values of a token in 16 bits, four layers, four heads of 32 channels. nano runs in 32 bits here.
    a_token = 2 * 2 * 4 * 4 * 32
    assert a_token < found["kv2-protected"].bytes - found["kv2"].bytes < 1.5 * a_token  # one token, and where it is
    assert found["kv8"].bytes / found["kv8"].of_16 == pytest.approx(64 * a_token)


def test_only_what_is_free_or_small_is_advised(card: Card) -> None:
    for part in card.parts:
        for row in part.rows:
            if row.advice and part.name == "cache":
                assert row.word in ("free", "small")


def test_what_does_not_apply_says_so_and_the_rest_runs() -> None:
    card = check("nano-encoder", count=4)
    assert card.part("sink").first.rows
    assert "no causal decoder" in card.part("bos").first.missing
    assert "no causal decoder" in card.part("cache").first.missing


def test_a_model_without_tokenizer_reads_random_tokens(nano: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise InputError("none")

    monkeypatch.setattr("sinkscope.checks.running.load_tokenizer", none)
    card = check(nano[0], count=4, only=["sink", "bos"])
    assert "random tokens" in card.record["texts"][0]["says"]
    assert card.part("bos").first.missing == "the model has no tokenizer"
    assert card.part("sink").first.rows


def test_a_card_in_json_is_the_same_card_and_holds_no_text(card: Card, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card.to_json(), allow_nan=False))
    again = Card.load(path)
    assert again.lines() == card.lines()
    assert again.table().equals(card.table())


def test_a_card_fits_a_screen(card: Card) -> None:
    lines, heads, cells = card.screen(30)
    assert len(lines) + len(cells) + 1 <= 30
    assert max(map(len, lines)) <= 120
    assert any("-ctk" in line for line in lines)
    assert any("Beware" in line for line in lines)
    assert heads[2] == "n"
    assert {row[2] for row in cells} == {str(TEXTS)}


@pytest.mark.parametrize("width", [80, 100, 118, 120, 200])
def test_a_card_fits_the_width_of_a_terminal(card: Card, width: int) -> None:
    lines, heads, cells = card.screen(30, width)
    assert len(lines) + len(cells) + 1 <= 30
    assert max(map(len, lines)) <= width
    columns = zip(heads, *cells, strict=True)
    assert sum(2 + max(map(len, column)) for column in columns) <= width
    full = sum(2 + max(map(len, column)) for column in zip(heads, *cells, strict=True))
    if width == 200:
        assert "n" in heads
        fewer = card.screen(30, full - 1)[1]
        assert "n" not in fewer
        assert "what to do" in fewer
    advised = [row.key for part in card.parts for row in part.rows if row.advice and row.number]
    assert sum(bool(row[-1]) for row in cells) == min(len(advised), len(cells))


@pytest.mark.slow
def test_two_cards_are_compared_text_by_text(card: Card, nano: tuple[Any, Any]) -> None:
    same = card.against(card)
    assert (same["difference"] == 0).all()
    assert len(same) > 5
    fewer = replace(card, parts=card.parts[:1], record={**card.record, "texts": card.record["texts"][:1]})
    assert len(fewer.against(card)) == len(card.against(fewer)) > 0  # of sections that read the same texts
    other = check(*nano, count=TEXTS, seed=1, only=["sink"])
    with pytest.raises(InputError, match=r"made on other texts .*hashes differ"):
        card.against(other)


@pytest.mark.slow
def test_costs_against_other_references_are_not_compared(card: Card) -> None:
    """A tokenizer that adds no BOS measures against none, another one against one."""
    other = Card.from_json(json.loads(json.dumps(card.to_json()).replace("against one BOS", "against no BOS")))
    assert "bos" in set(card.against(card)["section"])
    assert "bos" not in set(card.against(other)["section"])


def test_a_card_that_lacks_its_texts_is_named(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(json.dumps({"schema": 1, "model": "a", "sections": {}}))
    with pytest.raises(InputError, match="this is no whole report card: it lacks 'texts'"):
        Card.load(tmp_path / "card.json")


def test_the_text_of_rows_is_their_field(nano: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [{"body": " ".join(f"word {i} of {j}" for i in range(120))} for j in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = check(*nano, tmp_path / "rows.jsonl", only=["sink"], count=4, tokens=32, field="body")
    assert found.record["texts"][0]["n"] == 4


def test_sections_that_read_other_texts_are_not_paired(card: Card) -> None:
    """Long texts are as long as the model takes, so two models may have read others of the same name."""
    part = card.parts[0]
    name, answered = next(iter(part.by_texts.items()))
    long, longer = (
        replace(card, parts=(replace(part, by_texts={name: replace(answered, facts={"sha256": texts, "keys": keys})}),))
        for texts, keys in (("1", 32), ("2", 64))
    )
    assert len(long.against(long)) > 0
    assert len(long.against(longer)) == 0


def test_cards_of_two_tokenizers_are_compared_per_byte(card: Card) -> None:
    def with_bytes(size: float, sha256: str) -> list[dict[str, Any]]:
        return [{**each, "sha256": sha256, "bytes_per_token": [size] * each["n"]} for each in card.record["texts"]]

    mine = replace(card, record={**card.record, "texts": with_bytes(2.0, "1" * 64)})
    record = {**card.record, "texts": with_bytes(4.0, "0" * 64), "vocabulary_sha256": "another"}
    table = mine.against(replace(card, record=record))
    assert not table["paired"].any()
    kl = table[table["unit"] == "KL a byte"]
    assert len(kl) > 2
    np.testing.assert_allclose(kl["here"], 2 * kl["there"])
    np.testing.assert_allclose(kl["difference"], kl["there"])
    rate = table[table["unit"] == "% of heads"].iloc[0]
    assert rate["difference"] == 0
    assert rate["low"] < 0 < rate["high"]
    record["vocabulary_sha256"] = card.record["vocabulary_sha256"]
    with pytest.raises(InputError, match="hashes differ"):
        mine.against(replace(card, record=record))
    record["vocabulary_sha256"] = "another"
    record["texts"] = [{**texts, "corpus_sha256": "2" * 64} for texts in record["texts"]]
    with pytest.raises(InputError, match="from another corpus"):
        mine.against(replace(card, record=record))


@pytest.mark.slow
def test_other_texts_than_those_of_the_card_to_compare_with_are_refused_before_a_section_runs(
    card: Card, nano: tuple[Any, Any]
) -> None:
    def fail(*_: object) -> None:
        pytest.fail("a section ran")

    with pytest.raises(InputError, match="hashes differ"):
        check(*nano, count=4, only=["sink"], seed=1, against=card, progress=fail)


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "word"), [(-0.2, "free"), (0.2, "costs")])
def test_what_predicts_better_than_the_tokenizers_own_start_is_no_cost(
    nano: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, lost: float, word: str
) -> None:
    """However far the predictions are from those after the usual start, as the KL says."""
    cost = {"nats": Interval(lost, lost - 0.1, lost + 0.1), "kl": Interval(0.5, 0.4, 0.6)}
    monkeypatch.setattr(Trial, "cost", lambda trial, arm, score="kl": cost[score])
    row = rows(check(*nano, count=4, tokens=32, only=["bos"]), "bos")["no-BOS"]
    assert row.word == word
    assert bool(row.advice) == ("for the better" in row.why) == (word == "free")


@pytest.mark.slow
def test_sections_name_the_keys_of_their_rows(card: Card) -> None:
    for part in card.parts:
        assert all(SECTIONS[part.name].has(row.key) for row in part.rows)


def test_a_flag_of_no_row_is_refused_and_a_key_may_hold_colons() -> None:
    check_raisable(["alone:model.layers.0.mlp:costs", "costs"], chosen(full=True))
    for other in ("a8-tokn:costs", "kv2-proteced:costs"):
        with pytest.raises(InputError, match="did you mean"):
            check_raisable([other], chosen(full=True))
    with pytest.raises(InputError, match="raised by section cache"):
        check_raisable(["vllm-fp8:costs"], chosen(only=["engines"]))
    with pytest.raises(InputError, match=r"'kv88': did you mean 'kv8'"):
        check_raisable(["kv88:costs"], chosen())
    with pytest.raises(InputError, match="raised by section stream, which does not run"):
        check_raisable(["sinks-1:costs"], chosen())


@pytest.mark.slow
def test_a_section_is_answered_anew_for_another_tokenizer(nano: tuple[Any, Any], tmp_path: Path) -> None:
    """The plain texts that it reads stay the same."""
    model, tokenizer = nano
    cards = [check(model, each, count=4, only=["bos"], out=tmp_path) for each in (tokenizer, twice(tokenizer))]
    assert [card.raises("bos-twice") for card in cards] == [False, True]


@pytest.mark.slow
def test_a_section_is_answered_anew_for_texts_that_differ_where_only_it_reads(
    nano: tuple[Any, Any], tmp_path: Path
) -> None:
    """Long texts go on where the scored windows end."""
    model = random_llama(len(nano[1]), max_position_embeddings=128)  # streams of nano itself go token by token
    words = ["def", "return", "class", "for", "if", "else", "self", "name"]
    draw = np.random.default_rng(0)
    beginnings = [" ".join(draw.choice(words, 100)) for _ in range(12)]
    cards = [
        check(
            model,
            nano[1],
            [f"{each} {' '.join(draw.choice(words, 300))}" for each in beginnings],
            count=4,
            tokens=32,
            only=["stream"],
            out=tmp_path,
        )
        for _ in range(2)
    ]
    [one], [other] = (card.record["texts"] for card in cards)
    assert one["sha256"] == other["sha256"]
    first, second = (card.part("stream").first.facts["sha256"] for card in cards)
    assert first != second


@pytest.mark.slow
def test_a_finished_section_is_reused(nano: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = check(*nano, count=4, only=["bos"], out=tmp_path)

    def fail(*_: object) -> None:
        raise AssertionError("the section ran again")

    monkeypatch.setitem(SECTIONS, "bos", replace(BOS, run=fail))
    again = check(*nano, count=4, only=["bos"], out=tmp_path)
    assert again.part("bos").rows == first.part("bos").rows
    with pytest.raises(AssertionError, match="ran again"):
        check(*nano, count=4, only=["bos"], out=tmp_path, controls=2)


def test_flags_are_words_of_rows_or_names(card: Card) -> None:
    assert card.raises("kv8:free")
    assert not card.raises("kv8:breaks")
    for wrong in ("bos-thrice", "kv8:bad", "kv88:costs"):  # a gate on no row would let everything through
        with pytest.raises(InputError, match="unknown"):
            card.raises(wrong)


def test_cards_of_sections_that_read_other_texts_have_nothing_to_compare(card: Card) -> None:
    plain = {**card.record["texts"][0], "name": "elsewhere"}
    with pytest.raises(InputError, match="no set of texts in common"):
        card.against(replace(card, record={**card.record, "texts": [plain]}))


def test_sections_are_chosen_by_tier_and_by_name() -> None:
    assert [one.name for one in chosen()] == ["sink", "bos", "cache"]
    assert [one.name for one in chosen(full=True)] == list(SECTIONS)
    assert [one.name for one in chosen(only=["int8"])] == ["int8"]
    with pytest.raises(InputError, match="int8 is given twice"):
        chosen(only=["int8", "int8"])
    assert [one.name for one in chosen(skip=["bos"])] == ["sink", "cache"]
    with pytest.raises(InputError, match="did you mean 'cache'"):
        chosen(only=["cach"])
    with pytest.raises(InputError, match="both in"):
        chosen(only=["bos"], skip=["bos"])


def test_own_texts_that_are_too_short_are_refused(nano: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match=r"the longest text has \d+ tokens, and 128 are asked for"):
        check(*nano, ["too short"])
