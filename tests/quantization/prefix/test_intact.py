"""Trained keys and values of a prefix: what is minimized, what it leaves alone, and that it does what it says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from sinkscope.errors import InputError
from sinkscope.hooks import Passes, projections
from sinkscope.interventions import Intervention
from sinkscope.quantization import Grid, Prefix, fake_quantize
from sinkscope.quantization.prefix import calibrate_prefix
from tests.interventions.conftest import hooks
from tests.quantization.prefix.test_prefix import BOS, model_of, texts


@dataclass(frozen=True)
class Coarse(Intervention):
    """All inputs of linear maps rounded, token by token."""

    bits: int = 3

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        passes = Passes(model)
        passes.attach(stack)
        for one in projections(model):
            one.edit_input(lambda x: fake_quantize(x, Grid(self.bits, "token")), passes, stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Intervention:
        return self


def left(model: nn.Module, ids: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    kept = [
        layer.register_forward_hook(lambda m, a, out: found.append(out[0] if isinstance(out, tuple) else out))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(ids)
    for hook in kept:
        hook.remove()
    return found


def distance(prefix: Prefix, trained: Prefix, model: nn.Module, ids: torch.Tensor, quantized: Intervention) -> float:
    with prefix.applied(model):
        wanted = left(model, ids)
    with quantized.applied(model), trained.applied(model):
        found = left(model, ids)
    return sum(float((a - b).square().mean()) / 2 for a, b in zip(wanted, found, strict=True))


@pytest.mark.slow
def test_it_brings_the_quantized_model_nearer():
    model, ids, quantized = model_of("llama"), texts(), Coarse()
    prefix, count = Prefix.of(model, (5, BOS), bos=BOS), hooks(model)
    found = calibrate_prefix(prefix, model, ids, quantized, steps=40, lr=2e-2)
    before = distance(prefix, prefix, model, ids, quantized)
    assert found.found["calibrated"]["loss_first"] == pytest.approx(before, rel=1e-4)
    assert distance(prefix, found, model, ids, quantized) < 0.95 * before
    assert found.ids == prefix.ids
    assert found != prefix
    assert torch.equal(found.logits, prefix.logits)
    assert hooks(model) == count
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_in_full_precision_there_is_nothing_to_learn():
    model, ids = model_of("llama"), texts()
    prefix = Prefix.of(model, (BOS,), bos=BOS)
    found = calibrate_prefix(prefix, model, ids, Coarse(16), steps=3, lr=1e-2)
    assert found.found["calibrated"]["loss_first"] < 1e-10
    for mine, theirs in zip(found.cache().layers, prefix.cache().layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=0, atol=0.05)  # Adam moves by lr on rounding noise


def test_padding_counts_nowhere():
    model, ids = model_of("llama"), texts()
    mask = torch.ones_like(ids)
    mask[1, 15:] = 0
    other = ids.clone()
    other[1, 15:] = 44
    prefix = Prefix.of(model, (BOS,), bos=BOS)
    both = [
        calibrate_prefix(prefix, model, {"input_ids": each, "attention_mask": mask}, Coarse(), steps=2, lr=1e-3)
        for each in (ids, other)
    ]
    assert both[0].found["calibrated"]["loss_last"] == pytest.approx(both[1].found["calibrated"]["loss_last"], rel=1e-5)


def test_what_has_no_meaning_is_refused():
    model = model_of("llama")
    prefix = Prefix.of(model, (BOS,), bos=BOS)
    for options in ({"steps": 0}, {"lr": 0.0}, {"lr": float("nan")}):
        with pytest.raises(InputError, match="at least 1 step"):
            calibrate_prefix(prefix, model, texts(), Coarse(), **options)
    with pytest.raises(InputError, match="another model"):
        calibrate_prefix(prefix, model_of("mistral"), texts(), Coarse())
