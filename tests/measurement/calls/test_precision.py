"""Half precision: measured weights are those of an fp32 softmax over the same queries and keys."""

from __future__ import annotations

import pytest
import torch

from sinkscope.measurement import AttentionReceived, observing
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.reading import read_call
from tests.families import contract
from tests.families.reference import Map
from tests.families.registry import FAMILIES
from tests.measurement.conftest import lab_model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gpt_oss", "gemma2", "deepseek_v3", "bert", "t5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees_with_an_fp32_softmax(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES[name]
    for host in family.hosts:
        calls: list[AttentionCall] = []
        monkeypatch.setattr(
            observing, "read_call", lambda *args, calls=calls: calls.append(read_call(*args)) or calls[-1]
        )
        measurement, _ = contract.observed(family.build(host, dtype), family.inputs(), AttentionReceived())
        wanted: dict[str, list[torch.Tensor]] = {}
        for call in calls:
            wanted.setdefault(call.layer.stack, []).append(naive(call).received)
        found = contract.by_stack(measurement)
        for stack, layers in wanted.items():
            for one, other in zip(layers, found[stack], strict=True):
                assert contract.difference(one, other) <= 2e-3


def naive(call: AttentionCall) -> Map:
    """The whole attention map in double precision from the half-precision queries and keys."""
    keys = call.key.double().repeat_interleave(call.group, 1)
    scores = call.query.double() @ keys.mT * call.scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    everything = slice(0, len(call.query)), slice(0, call.query.shape[2]), slice(0, call.key.shape[2])
    visible = call.mask.visible(*everything).expand(scores.shape)
    scores = scores.masked_fill(~visible, -torch.inf)
    if call.sink is None:
        return Map(torch.softmax(scores, -1), visible)
    sink = call.sink.double().expand(scores.shape[:3])[..., None]
    return Map(torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1], visible)


@pytest.mark.parametrize("name", ["softmax", "k_bias", "sigmoid"])
def test_the_lab_model_in_bfloat16_is_near_fp32(name: str, ids: torch.Tensor) -> None:
    model = lab_model(name).bfloat16()
    with torch.no_grad():
        plain = model(ids).logits
    _, seen = contract.observed(model, {"input_ids": ids}, AttentionReceived())
    assert torch.equal(plain, seen)
