"""Weights that were rounded before they were read, by their file's types and by their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from sinkscope.model import load
from sinkscope.quantization import scheme_named
from sinkscope.quantization.as_read import on_four_bits, rounds_weights, weights_as_read
from sinkscope.trials import scheme_trial


def on_a_grid(share: float = 1.0) -> Any:
    """nano with that share of its maps on 16 values in each block of 32 weights."""
    model = load("nano")
    maps = [parameter for parameter in model.parameters() if parameter.ndim == 2 and parameter.shape[1] % 32 == 0]
    with torch.no_grad():
        for parameter in maps[: round(share * len(maps))]:
            blocks = parameter.view(-1, 32)
            low, high = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)
            step = (high - low).clamp(min=1e-9) / 15
            blocks.copy_(((blocks - low) / step).round() * step + low)
    return model


def test_weights_on_a_four_bit_grid_are_told_from_others() -> None:
    model = load("nano")
    assert on_four_bits(model) == 0
    assert weights_as_read(model).says == "weights in float32"
    assert not weights_as_read(model).rounded
    model = on_a_grid()
    assert on_four_bits(model) > 0.9
    assert weights_as_read(model).says == "weights on a 4-bit grid, read in float32"
    # As in a folder that was saved from a file which stores a part of its maps in more bits.
    assert weights_as_read(on_a_grid(0.8)).rounded


@pytest.mark.parametrize(
    ("types", "says", "rounded"),
    [
        ({"Q4_K": 600, "Q6_K": 100}, "weights in GGUF Q4_K and Q6_K, read in float32", True),
        ({"Q8_0": 700}, "weights in GGUF Q8_0, read in float32", True),
        ({"F16": 700}, "weights in GGUF F16, read in float32", False),
        ({"BF16": 700}, "weights in GGUF BF16, read in float32", False),
        ({"F16": 700, "Q8_0": 60}, "weights in GGUF F16 and Q8_0, read in float32", False),
        ({"Q4_K": 700, "F32": 60, "F16": 60}, "weights in GGUF Q4_K, F32 and F16, read in float32", True),
        (
            {"Q4_K": 500, "Q5_K": 200, "Q6_K": 90, "F32": 1},
            "weights in GGUF Q4_K, Q5_K and Q6_K, read in float32",
            True,
        ),
    ],
)
def test_a_files_types_are_believed_over_values(types: dict[str, int], says: str, rounded: bool) -> None:
    model = load("nano")
    model.gguf = {"types": types}
    assert weights_as_read(model).says == says
    assert weights_as_read(model).rounded == rounded


@pytest.mark.parametrize(
    ("name", "rounds"),
    [("w4", True), ("w8a8-token", True), ("llm-int8", True), ("w16a8-token", False), ("q4_0", False)],
)
def test_schemes_that_round_weights(tiny_llama: LlamaForCausalLM, name: str, rounds: bool) -> None:
    inputs = {"input_ids": torch.randint(0, 101, (2, 16))}
    assert rounds_weights(scheme_named(name).make(tiny_llama, inputs, None)) == rounds


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "noted"), [("w4", True), ("w16a8-token", False)])
def test_a_trial_notes_that_weights_had_been_rounded(scheme: str, noted: bool) -> None:
    ids = torch.randint(3, 2000, (4, 40), generator=torch.Generator().manual_seed(0))
    trial = scheme_trial(on_a_grid(), ids, scheme, {}, 0)
    assert (
        "The model has weights on a 4-bit grid, read in float32: they were rounded before" in trial.verdict
    ) == noted
    assert any("rounded before" in note for note in trial.record["notes"]) == noted
