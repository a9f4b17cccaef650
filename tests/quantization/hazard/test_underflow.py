"""What a cast of attention weights to e4m3 loses, against the cast itself, block by block as a kernel walks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from sinkscope import measure
from sinkscope.measurement import AttentionMaps
from sinkscope.quantization import Fp8Underflow
from sinkscope.quantization.hazard.underflow import BLOCK, running_largest
from tests.planted.factory import F3, planted_ids, planted_model


def cast(weights: torch.Tensor, scale: float, reverse: bool) -> tuple[float, float]:
    """Share of one head's weights (query, key) that a kernel's P is 0 for after the cast, and their mass a query."""
    lost = seen = mass = 0.0
    blocks = [slice(start, start + BLOCK) for start in range(0, weights.shape[1], BLOCK)]
    for row in weights:
        largest = torch.tensor(0.0)
        for block in reversed(blocks) if reverse else blocks:
            largest = torch.maximum(largest, row[block].max())
            p = torch.where(row[block] > 0, row[block] / largest.clamp(min=1e-30), 0.0)
            zero = ((p * scale).to(torch.float8_e4m3fn).float() == 0) & (row[block] > 0)
            lost, seen = lost + float(zero.sum()), seen + float((row[block] > 0).sum())
            mass += float(row[block][zero].sum())
    return lost / seen, mass / len(weights)


@pytest.mark.parametrize("tokens", [50, 100])
def test_shares_are_those_of_the_cast(tokens: int) -> None:
    model, ids = planted_model(), planted_ids(F3, 1, tokens)
    found = measure(model, ids, [Fp8Underflow(), AttentionMaps(tokens)]).data
    maps = torch.from_numpy(found["attention_map"].values[0])
    seen = set()
    for name, scale, reverse in (("forward", 256, False), ("reverse", 256, True), ("forward, unscaled", 1, False)):
        for layer, head in [(0, 0), (1, 1), (3, 2)]:
            share, mass = cast(maps[layer, head], scale, reverse)
            here = {"sample": 0, "layer": layer, "head": head}
            assert float(found["fp8_underflow"].sel(cast=name).isel(here)) == pytest.approx(share, abs=2e-4)
            assert float(found["fp8_lost_mass"].sel(cast=name).isel(here)) == pytest.approx(mass, abs=1e-5)
            seen.add(round(share, 3))
    assert len(seen) > 3


def test_the_edge_is_where_the_cast_has_it() -> None:
    edge = torch.tensor([2.0**-10, 2.0**-10 * (1 + 2**-20)])
    assert edge.to(torch.float8_e4m3fn).float().tolist() == [0.0, 2.0**-9]


def test_the_largest_so_far_is_that_of_whole_blocks() -> None:
    weights = torch.rand(1, 1, 2, 2 * BLOCK + 7)
    for reverse in (False, True):
        found = running_largest(weights, reverse)
        for key in (0, BLOCK - 1, BLOCK, 2 * BLOCK + 6):
            block = key // BLOCK
            own = weights[..., block * BLOCK :] if reverse else weights[..., : (block + 1) * BLOCK]
            assert torch.equal(found[..., key], own.amax(-1))


def test_chunks_and_steps_of_a_cache_add_up(tiny_llama: LlamaForCausalLM) -> None:
    from sinkscope import observe

    ids = torch.randint(0, 101, (2, 90))
    whole = measure(tiny_llama, ids, [Fp8Underflow()]).data["fp8_underflow"]
    with torch.no_grad(), observe(tiny_llama, Fp8Underflow()) as seen:
        cache = None
        for part in ids.split(40, 1):
            cache = tiny_llama(part, past_key_values=cache, use_cache=True).past_key_values
    assert np.allclose(seen.measurement().data["fp8_underflow"], whole, atol=1e-6)
