"""Sections of --full, on models of this package."""

from __future__ import annotations

import pytest
import torch

from sinkscope.caches import StreamingCache
from sinkscope.checks import Answered, Part, Row, check, int8
from sinkscope.checks.modules import layer_costs
from sinkscope.checks.streaming import _arm
from sinkscope.model import load, load_tokenizer
from sinkscope.statistics import Interval
from sinkscope.trials import OnePass, cached, run, stream_nll


@pytest.mark.slow
def test_a_stream_read_in_chunks_is_a_stream_read_token_by_token() -> None:
    model = load("nano")
    ids = torch.randint(3, 2000, (2, 96), generator=torch.Generator().manual_seed(0))
    trial = run(model, ids, [_arm(1, 24, "full")], reading=OnePass(from_token=24), controls=0)
    one_by_one = stream_nll(model, ids, cached("stream", lambda model: StreamingCache(model, 1, 23)), context=1)
    expected = one_by_one[:, 24:].mean(1)  # of tokens 25 on, which places 24 on predict
    assert torch.allclose(torch.tensor(trial.values("1 first token kept", "nats")), expected, atol=1e-4)


@pytest.mark.release
def test_every_section_of_full_finds_something_on_nano() -> None:
    card = check(load("nano"), load_tokenizer("nano"), count=6, only=["needed", "stream", "evict", "int8"])
    assert not any(part.first.missing for part in card.parts)
    rows = {row.key: row for part in card.parts for row in part.rows}
    assert rows["hide-sink"].number.value > 0
    assert rows["h2o@25%"].bytes < rows["h2o@50%"].bytes
    assert rows["w8a8-token"].number.value < rows["w8a8-tensor"].number.value
    assert {"sinks-0", "sinks-1", "sinks-2", "sinks-4"} <= rows.keys()


@pytest.mark.slow
def test_what_costs_is_rescued_and_beside_random_maps_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first texts alone; nano's schemes are small, so the word is planted."""
    monkeypatch.setattr(int8, "LOST", ("small",))
    card = check(load("nano"), load_tokenizer("nano"), count=8, tokens=48, full=True, only=["int8"])
    first, second = card.part("int8").found.values()
    rows = {row.key: row for row in first.rows}
    assert rows["w8a8-tensor"].word == "small"
    for what in ("maps", "tokens"):
        row = rows[f"rescue:w8a8-tensor-{what}"]
        assert row.number.value < 0.2 * rows["w8a8-tensor"].number.value
        assert "as many random ones" in row.why
        assert row.advice
    assert first.facts["rescue"]["w8a8-tensor"]["maps"] == ["model.layers.1.mlp.down_proj"]
    assert not [row for row in second.rows if row.key.startswith("rescue")]


@pytest.mark.slow
def test_two_sets_of_texts_say_whether_a_word_holds_on_both() -> None:
    card = check(load("nano"), load_tokenizer("nano"), count=4, full=True, only=["bos"])
    names = [each["name"] for each in card.record["texts"]]
    assert names == ["code", "prose"]
    assert set(card.part("bos").found) == set(names)
    row = next(row for row in card.part("bos").rows if row.key == "no-BOS")
    assert "holds on both" in row.why or " on prose" in row.why


def test_layers_are_ranked_by_the_sum_of_their_maps() -> None:
    model = load("nano")
    costs = {
        "model.layers.1.mlp.up": 0.2,
        "model.layers.11.mlp.up": 9.0,
        "model.layers.1.mlp.down": 0.1,
        "lm_head": 1.0,
    }
    costs |= {"lm_head": 1.0, "model.layers.3.self_attn.q_proj": 0.5}
    assert layer_costs(model, costs) == [[3, 0.5], [1, 0.3], [0, 0.0], [2, 0.0]]


def test_a_word_that_does_not_hold_on_the_second_texts_is_said_in_the_answer() -> None:
    number = Interval(0.05, 0.04, 0.06)
    rows = [Row("kv2", "2 bits", number, "KL a token", 24, word, advice="use 2 bits") for word in ("small", "costs")]
    part = Part(
        "cache",
        "Cache bits",
        {"prose": Answered("Use 2 bits.", (rows[0],)), "code": Answered("", (rows[1],))},
    )
    assert part.answer == "Use 2 bits. Other words on code: 2 bits costs."
    assert part.rows[0].word == "costs"
    assert part.rows[0].advice == ""
