"""A prefix under real methods, on nano: what it recovers compared with its controls, as inequalities."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sinkscope.data import build_inputs
from sinkscope.interventions import All
from sinkscope.model import load, load_tokenizer
from sinkscope.quantization import Grid, Prefix, QuantizeLinear, find_prefix
from sinkscope.sinks import Positions
from sinkscope.trials import text_scores

W8A8 = QuantizeLinear(Grid(8, "token", symmetric=True), Grid(8, "tensor"))


def texts(rows: int) -> Tensor:
    return build_inputs(
        "natural", tokenizer=load_tokenizer("nano"), vocab_size=2048, tokens=96, samples=rows, seed=0
    ).input_ids


@pytest.mark.slow
def test_the_bos_in_the_cache_recovers_most_of_w8a8_and_other_tokens_nothing():
    model, ids = load("nano"), texts(24)
    prefix = find_prefix(model, ids[:8], threshold=20.0)
    plain = text_scores(model, ids).loss

    def lost(*parts: object) -> float:
        return float((text_scores(model, ids, All(parts)).loss - plain).mean())  # type: ignore[arg-type]

    none = lost(W8A8)
    assert none > 0.01
    with_prefix = lost(prefix, W8A8)
    assert with_prefix < none / 2
    in_place = QuantizeLinear(W8A8.weights, W8A8.activations, protect=Positions(0))
    # In place, the sink's own row goes through rounded weights.
    assert with_prefix == pytest.approx(lost(in_place), abs=0.15 * none)
    for seed in range(2):
        control = prefix.control(torch.Generator().manual_seed(seed), model, {"input_ids": ids})
        base = float((text_scores(model, ids, control).loss - plain).mean())  # another token in front costs by itself
        assert lost(control, W8A8) - base > 0.6 * none


@pytest.mark.slow
def test_full_precision_with_the_prefix_is_without():
    model, ids = load("nano"), texts(8)
    with_prefix = text_scores(model, ids, Prefix.of(model, (0,))).loss
    assert abs(with_prefix - text_scores(model, ids).loss).max() < 1e-5
