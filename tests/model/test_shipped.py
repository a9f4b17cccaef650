"""The shipped model shows what it is shipped to show."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from sinkscope.data import build_inputs
from sinkscope.measurement import AttentionReceived, Measurement, measure
from sinkscope.model import SHIPPED, load, load_tokenizer


@pytest.fixture(scope="module")
def by_input() -> dict[str, Measurement]:
    """`nano` on 100 × 64 tokens of each kind."""
    model, tokenizer = load("nano"), load_tokenizer("nano")
    found = {}
    for kind in ("natural", "random", "repeated"):
        inputs = build_inputs(
            kind, tokenizer=tokenizer, vocab_size=model.config.vocab_size, tokens=64, samples=100, seed=0
        )
        found[kind] = measure(model, inputs.input_ids, observers=[AttentionReceived()], batch_size=50)
    return found


@pytest.mark.release
def test_natural_text_has_a_sink_at_its_first_token(by_input):
    assert by_input["natural"].sink_rate(0.3, position=0) >= 8


@pytest.mark.slow
def test_one_token_repeated_has_none(by_input):
    """With rotary positions and one token, every hidden state is the same: nothing marks the first."""
    assert by_input["repeated"].sink_rate(0.3, position=0) < 1


@pytest.mark.slow
def test_the_sink_came_with_the_bos(by_input):
    """nano was trained with a BOS at position 0; random tokens have none."""
    assert by_input["random"].sink_rate(0.3, position=0) < by_input["natural"].sink_rate(0.3, position=0)


def test_it_is_small_and_says_where_it_comes_from():
    folder = SHIPPED["nano"]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}  # noqa: SIM118
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "finished"
    assert record["recipe"]["name"] == "nano"
    assert len(record["data"]["train"]["tokens_sha256"]) == 64
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == record["recipe"]["steps"]
    model = load("nano")
    assert model.dtype == torch.float32
    assert model.config.name_or_path == "nano"


def test_it_knows_its_bos_and_writes_python():
    model, tokenizer = load("nano"), load_tokenizer("nano")
    ids = tokenizer("def main(", return_tensors="pt").input_ids
    assert ids[0, 0] == tokenizer.bos_token_id == model.config.bos_token_id
    loss = model(ids, labels=ids).loss
    shuffled = ids[:, [0, *reversed(range(1, ids.shape[1]))]]
    assert loss < model(shuffled, labels=shuffled).loss
