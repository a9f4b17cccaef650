"""Sinks are protected wherever they stand: planted ones are found, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.caches import EvictingCache, Protect, SinkSet, evicting
from sinkscope.caches.policies import KeyNorm, ObservedAttention, RandomKeys
from sinkscope.errors import InputError
from sinkscope.measurements import Measurement
from sinkscope.probes import measure
from tests.families.registry import FAMILIES

IDS = torch.randint(10, 90, (2, 40), generator=torch.Generator().manual_seed(3))
IDS[:, 13] = IDS[1, 4] = 5
PADDED = torch.ones(2, 40).long().index_put_((torch.tensor(1), torch.arange(4)), torch.tensor(0))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("sdpa")


def kept(
    model: PreTrainedModel, sinks: SinkSet, budget: int = 9, mask: Tensor | None = None
) -> list[list[list[set[int]]]]:
    """The kept columns of each row of each head of each layer."""
    with evicting(model, Protect(RandomKeys(), sinks, recent=3), budget) as cache, torch.no_grad():
        model(IDS, attention_mask=mask, past_key_values=cache)
    return [[[{p for p in head if p >= 0} for head in row] for row in layer.places.tolist()] for layer in cache.kept]


def test_the_first_are_counted_behind_the_padding(model: PreTrainedModel) -> None:
    for layer in kept(model, SinkSet.first(2), mask=PADDED):
        assert all({0, 1, 37, 38, 39} <= head for head in layer[0])
        assert all({4, 5, 37, 38, 39} <= head for head in layer[1])


def test_tokens_are_protected_wherever_they_stand(model: PreTrainedModel) -> None:
    for layer in kept(model, SinkSet.tokens([5])):
        assert all(13 in head for head in layer[0])
        assert all({4, 13} <= head for head in layer[1])
    without = kept(model, SinkSet.tokens([6]))
    assert not all(13 in head for layer in without for row in layer for head in row)


def planted(layers: int, heads: int, sinks: dict[tuple[int, int], float]) -> Measurement:
    """A measurement in which heads (layer, head) have α = 0.9 at a position and little elsewhere."""
    alpha = np.full((1, layers, heads, 30), 0.01, np.float32)
    for (layer, head), position in sinks.items():
        alpha[0, layer, head, int(position)] = 0.9
    data = xr.Dataset(
        {
            "attention_received": (("sample", "layer", "head", "position"), alpha),
            "tokens": (("sample", "layer"), np.full((1, layers), 30)),
        },
        coords={"stack": ("layer", ["decoder"] * layers), "layer_index": ("layer", list(range(layers)))},
    )
    return Measurement(data)


def test_measured_sinks_are_those_of_the_heads_group(model: PreTrainedModel) -> None:
    sinks = SinkSet.of(planted(2, 4, {(0, 1): 7, (1, 2): 11}))
    found = kept(model, sinks, mask=PADDED)
    assert 7 in found[0][0][0]
    assert 11 in found[0][1][0]  # in the row with 4 of padding
    assert 11 in found[1][0][1]
    assert 15 in found[1][1][1]
    assert sinks.most == 1
    both = SinkSet.of(planted(2, 4, {(0, 1): 7, (0, 0): 8}))
    assert both.most == 2


def test_what_few_queries_see_is_no_measured_sink() -> None:
    assert SinkSet.of(planted(2, 4, {(0, 1): 14, (1, 2): 3})).most == 1
    assert SinkSet.of(planted(2, 4, {(0, 1): 15, (1, 2): 29})).most == 0


def test_a_real_measurement_protects_its_own_sinks(model: PreTrainedModel) -> None:
    measured = measure(model, {"input_ids": IDS[:1]})
    alpha = measured.data["attention_received"].values[0]
    found = kept(model, SinkSet.of(measured, epsilon=0.2), budget=30)
    for layer in range(2):
        for head in range(4):
            sinks = np.flatnonzero(alpha[layer, head][: IDS.shape[1] // 2] > 0.2)
            assert {int(position) for position in sinks} <= found[layer][0][head // 2]


def test_sinks_found_online_are_those_of_the_sums(model: PreTrainedModel) -> None:
    with evicting(model, ObservedAttention(), 64) as cache, torch.no_grad():
        model(IDS, past_key_values=cache)
    (note,) = ObservedAttention().needs
    found = kept(model, SinkSet.online(0.15), budget=30)
    some = 0
    for layer, sets in zip(cache.kept, found, strict=True):
        alpha = layer.slots[note] / (40 - torch.arange(40))
        for row in range(2):
            for head in range(2):
                sinks = {k for k in range(25) if float(alpha[row, head, k]) > 0.15}
                some += len(sinks)
                assert sinks <= sets[row][head]
    assert some


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SinkSet.online(0), "between 0 and 1"),
        (lambda: SinkSet.of(planted(2, 4, {}), 1.0), "between 0 and 1"),
        (lambda: SinkSet.tokens([]), "no token ids"),
        (lambda: SinkSet.tokens([-1]), "no token ids"),
        (lambda: SinkSet.first(-1), "no number of tokens"),
        (lambda: SinkSet.of(Measurement(xr.Dataset())), "no attention_received"),
        (lambda: Protect(KeyNorm(), SinkSet.first(1), -1), "at least 0"),
    ],
)
def test_bad_input_is_refused(make: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


@torch.no_grad()
def test_tokens_need_ids_and_measured_layers(model: PreTrainedModel) -> None:
    def run(sinks: SinkSet, **given: Any) -> EvictingCache:
        with evicting(model, Protect(KeyNorm(), sinks, 2), 9) as cache:
            model(**given, past_key_values=cache)
        return cache

    with pytest.raises(InputError, match="embeddings"):
        run(SinkSet.tokens([5]), inputs_embeds=torch.randn(1, 20, 32))
    with pytest.raises(InputError, match="was not measured"):
        run(SinkSet.of(planted(1, 4, {})), input_ids=IDS)
    with pytest.raises(InputError, match="heads were measured"):
        run(SinkSet.of(planted(2, 3, {})), input_ids=IDS)
