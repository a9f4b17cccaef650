"""A few operations of the lab model against formulas written by hand over a layer's own queries and keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.measurement import AttentionReceived, SlotReceived, measure, observe
from tests.measurement.conftest import lab_model, operations

SLOTTED = {"softmax_off_by_one", "sink_logit", "kv_bias", "k_bias"}
BY_HAND = ["softmax", "sigmoid", "sigmoid_normalized", *sorted(SLOTTED), "v_bias"]


def written_out(name: str, ids: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """alpha and slot mass per layer from hand-written formulas over the layer's own queries and keys."""
    model = lab_model(name)
    alphas, slots = [], []

    def look(module: torch.nn.Module, args: tuple, output: object) -> None:
        query, key = args[0].double(), args[1].double().repeat_interleave(2, 1)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:]).triu(1).bool()
        terms = dict(module.slot_modules.named_parameters())
        if name.startswith("sigmoid"):
            weights = torch.sigmoid(scores).masked_fill(future, 0)
            weights = weights / (weights.sum(-1, keepdim=True) + (1e-8 if name == "sigmoid" else 0))  # 12.3
            slot = torch.zeros(*scores.shape[:3], 1)
        else:
            exponentials = scores.masked_fill(future, -torch.inf).exp()
            extra = torch.zeros(*scores.shape[:3], 1)
            if name == "softmax_off_by_one":
                extra = torch.ones(*scores.shape[:3], 1)
            elif name == "sink_logit":
                extra = terms["0.logit"].exp()[None, :, None, None].expand(*scores.shape[:3], 1)
            elif name in ("kv_bias", "k_bias"):
                bias = terms["0.key"].double().repeat_interleave(2, 0)
                extra = (query * bias[:, None]).sum(-1, keepdim=True).div(query.shape[-1] ** 0.5).exp()
            total = exponentials.sum(-1, keepdim=True) + extra
            weights, slot = exponentials / total, extra / total
        alphas.append(weights.sum(-2) / torch.arange(ids.shape[1], 0, -1))
        slots.append(slot.mean((-2, -1)))

    for layer in model.model.layers:
        layer.self_attn.operation.register_forward_hook(look)
    with torch.no_grad():
        model(ids)
    return torch.stack(alphas, 1).detach().numpy(), torch.stack(slots, 1).detach().numpy()


@pytest.mark.parametrize("name", BY_HAND)
def test_attention_and_slots_follow_the_formula(name: str, ids: torch.Tensor) -> None:
    model = lab_model(name)
    alpha, slot = written_out(name, ids)
    with torch.no_grad():
        plain = model(ids).logits
        with observe(model, AttentionReceived(), SlotReceived()) as seen:
            observed = model(ids).logits
    data = seen.measurement().data
    assert torch.equal(plain, observed)
    assert np.abs(data["attention_received"].values - alpha).max() < 1e-5
    assert ("slot_received" in data) == (name in SLOTTED)
    if name in SLOTTED:
        assert np.abs(data["slot_received"].values - slot).max() < 1e-5
    assert alpha.max() > 2.5 * alpha.mean(), "attention must be far from uniform"


@pytest.mark.parametrize("name", operations())
def test_chosen_positions_are_those_of_the_whole_profile(name: str, ids: torch.Tensor) -> None:
    model = lab_model(name)
    whole = measure(model, ids, [AttentionReceived()]).data["attention_received"].values
    some = measure(model, ids, [AttentionReceived("first:8")]).data["attention_received"].values
    assert np.abs(some - whole[..., :8]).max() < 1e-6


def test_the_record_says_which_weights_the_metric_used(ids: torch.Tensor) -> None:
    assert measure(lab_model("sigmoid"), ids).record["metric_weights"] == ["renormalized"]
    assert measure(lab_model("k_bias"), ids).record["metric_weights"] == ["raw"]
