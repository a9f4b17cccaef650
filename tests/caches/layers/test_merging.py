"""Merging evicted keys, where many go to one kept key and where nothing is kept."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from sinkscope.caches.layers.merging import merged

HOW = ["averaged", "pivot", "weighted"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("how", HOW)
def test_means_of_thousands_of_keys_are_those_of_fp64_rounded_once(how: str, dtype: torch.dtype) -> None:
    """Their sums exceed what fp16 can hold."""
    generator = torch.Generator().manual_seed(0)
    key, value = ((40 + 40 * torch.rand(1, 1, 3000, 4, generator=generator)).to(dtype) for _ in range(2))
    first = torch.zeros(1, 1, 1, dtype=torch.long)
    found = merged(key, value, first, first == 0, torch.ones(1, 1, 3000, dtype=torch.bool), how)
    cosine = functional.cosine_similarity(key.double(), key[:, :, :1].double(), dim=-1)[..., None]
    for rows, mean in zip((key.double(), value.double()), found, strict=True):
        brought = {"averaged": rows, "pivot": (rows + rows[:, :, :1]) / 2, "weighted": rows * cosine}[how]
        wanted = brought.mean(2, keepdim=True)
        torch.testing.assert_close(mean.to(dtype).double(), wanted, rtol=0.501 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", [False, True])
def test_a_head_that_keeps_nothing_holds_numbers(how: str, real: bool) -> None:
    """They are masked, but NaN and infinity would survive a mask."""
    key, value = torch.randn(2, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    index, kept = torch.arange(3).expand(1, 2, 3), torch.tensor([True, False])[None, :, None].expand(1, 2, 3)
    reals = torch.tensor([True, real])[None, :, None].expand(1, 2, 5)
    assert all(bool(rows.isfinite().all()) for rows in merged(key, value, index, kept, reals, how))
