"""The shipped encoder and hybrid are what their records say, and are measured on what they were trained on."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import BertForMaskedLM, JambaForCausalLM

from sinkscope.data import Inputs, build_inputs
from sinkscope.measurement import measure
from sinkscope.model import SHIPPED, load, load_tokenizer

CLASSES = {"nano-encoder": BertForMaskedLM, "nano-hybrid": JambaForCausalLM}
both = pytest.mark.parametrize("name", CLASSES)


def record_of(name: str) -> dict[str, Any]:
    return json.loads((SHIPPED[name] / "record.json").read_text())


@lru_cache
def natural(name: str) -> Inputs:
    """Windows of the corpus that it was trained on. Shared: leave them as they are."""
    return build_inputs(
        "natural",
        tokenizer=load_tokenizer(name),
        vocab_size=load(name).config.vocab_size,
        tokens=record_of(name)["recipe"]["context"],
        samples=32,
        seed=0,
    )


@both
def test_it_is_small_and_says_where_it_comes_from(name: str) -> None:
    folder, record = SHIPPED[name], record_of(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3_000_000
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(key).dtype for key in weights.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert (record["status"], record["recipe"]["name"]) == ("finished", name)
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == record["step"] == record["recipe"]["steps"]
    model = load(name)
    assert type(model) is CLASSES[name]
    assert (model.dtype, model.config.name_or_path) == (torch.float32, name)
    assert sum(value.numel() for value in model.parameters()) == record["parameters"]["total"]


@pytest.mark.slow
@both
def test_the_sink_is_as_strong_as_its_record_says(name: str) -> None:
    """Other text than the record's, hence wide bounds."""
    found = measure(load(name), natural(name).input_ids).sink_rate(0.3, position=0)
    assert found == pytest.approx(record_of(name)["results"]["sink/position_0"], abs=8)


@pytest.mark.slow
def test_the_encoder_meets_text_between_cls_and_sep() -> None:
    tokenizer, inputs = load_tokenizer("nano-encoder"), natural("nano-encoder")
    assert (inputs.input_ids[:, 0] == tokenizer.cls_token_id).all()
    assert (inputs.input_ids[:, -1] == tokenizer.sep_token_id).all()


@pytest.mark.slow
def test_the_encoder_fills_a_mask_better_in_its_text_than_out_of_it() -> None:
    model, tokenizer, ids = load("nano-encoder"), load_tokenizer("nano-encoder"), natural("nano-encoder").input_ids
    positions = torch.arange(10, ids.shape[1] - 10, 10)

    def loss(text: torch.Tensor) -> float:
        labels = torch.full_like(text, -100)
        labels[:, positions] = ids[:, positions]
        masked = text.clone()
        masked[:, positions] = tokenizer.mask_token_id
        with torch.no_grad():
            return float(model(masked, labels=labels).loss)

    assert loss(ids) < loss(ids.roll(1, dims=0)) - 0.1


@pytest.mark.slow
def test_the_hybrid_has_a_bos_and_prefers_text_in_its_order() -> None:
    model, ids = load("nano-hybrid"), natural("nano-hybrid").input_ids
    assert (ids[:, 0] == model.config.bos_token_id).all()
    turned = torch.cat([ids[:, :1], ids[:, 1:].flip(1)], dim=1)
    with torch.no_grad():
        assert model(ids, labels=ids).loss < model(turned, labels=turned).loss - 0.5


@pytest.mark.slow
def test_the_hybrid_is_measured_in_the_layer_that_attends() -> None:
    found = measure(load("nano-hybrid"), natural("nano-hybrid").input_ids[:2])
    assert found.data["layer_index"].values.tolist() == [2]
    assert found.data.sizes["depth"] == 5
