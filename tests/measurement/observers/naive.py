"""Attention layers of tiny models as whole matrices, from eager maps: what the attention observers must agree with.

Nothing here is chunked, and no log-sum-exp is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor

from sinkscope.measurement import Observer, observe, observing
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.reading import read_call
from sinkscope.model import LabForCausalLM
from tests.families import reference
from tests.families.registry import FAMILIES
from tests.measurement.conftest import build, lab_model

HUB = ["llama", "gpt2", "mistral", "gemma2", "gpt_oss", "granite_swa", "deepseek_v3", "bert", "t5"]
LAB = ["lab:sigmoid", "lab:sink_logit", "lab:kv_bias", "lab:softmax_off_by_one", "lab:v_bias"]
ALL = [*HUB, *LAB]


@dataclass(frozen=True)
class Whole:
    """A layer: `weights` (sample, head, query, key) as it used them, and the queries, keys and values behind them."""

    weights: Tensor
    call: AttentionCall

    @property
    def slot(self) -> Tensor:
        """What went to no token, (sample, head, query)."""
        return 1 - self.weights.sum(-1)

    @property
    def visible(self) -> Tensor:
        """(query, key) of a layer without padding."""
        queries, keys = self.weights.shape[-2:]
        mask = self.call.mask.visible(slice(0, len(self.weights)), slice(0, queries), slice(0, keys))
        return mask.expand(len(self.weights), -1, -1, -1)[0, 0]

    @property
    def scores(self) -> Tensor:
        """Scaled, capped and biased logits, unmasked, (sample, head, query, key)."""
        call = self.call
        scores = call.query.double() @ call.key.double().repeat_interleave(call.group, 1).mT * call.scaling
        if call.softcap is not None:
            scores = torch.tanh(scores / call.softcap) * call.softcap
        return scores if call.bias is None else scores + call.bias

    @property
    def values(self) -> Tensor:
        return self.call.value.double().repeat_interleave(self.call.group, 1)


def look(name: str, monkeypatch: pytest.MonkeyPatch, *observers: Observer) -> tuple[xr.Dataset, list[Whole]]:
    """What the observers say of a model, and its layers in the order of the dataset's."""
    calls: list[AttentionCall] = []
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(observing, "read_call", lambda *args: calls.append(read_call(*args)) or calls[-1])
        model, inputs = build(name), FAMILIES[name if name in FAMILIES else "llama"].inputs()
        with observe(model, *observers) as seen:
            model(**inputs)
    data = seen.measurement().data
    maps = {stack: list(layers) for stack, layers in _maps(name).items()}
    by_name = {call.layer.name: call for call in calls}
    places = zip(data["layer_name"].values, data["stack"].values, strict=True)
    return data, [Whole(maps[stack].pop(0).double(), by_name[layer]) for layer, stack in places]


def close(found: xr.DataArray | np.ndarray, wanted: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=tolerance, atol=tolerance)


@cache
def _maps(name: str) -> Mapping[str, Sequence[Tensor]]:
    """The maps of each layer by stack, on the inputs that `look` uses."""
    if name.startswith("lab:"):
        return _lab_maps(lab_model(name[4:]), FAMILIES["llama"].inputs())
    return reference.eager_maps(FAMILIES[name], FAMILIES[name].inputs())


def _lab_maps(model: LabForCausalLM, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """Weights that the naive reference of each layer's operation writes out."""
    maps: list[Tensor] = []

    def keep(module: torch.nn.Module, args: tuple, output: object) -> None:
        maps.append(module.forward(*args[:3], path="reference").weights)

    for layer in model.model.layers:
        layer.self_attn.operation.register_forward_hook(keep)
    with torch.no_grad():
        model(**inputs)
    return {"decoder": maps}
