"""Formats of engines against their own loops, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.grids import decode_from, encode_as


def ggml(row: list[float], kind: str) -> list[float]:
    """A row of 32 by ggml's reference quantizers, one number at a time."""
    largest = max(row, key=abs)
    scale = abs(largest) / 127 if kind == "q8_0" else largest / -8
    stored = float(torch.tensor(scale).half())
    ratios = [x / scale if scale else 0.0 for x in row]
    if kind == "q8_0":
        return [stored * int(abs(r) + 0.5) * (1 if r >= 0 else -1) for r in ratios]
    return [stored * (min(15, int(r + 8.5)) - 8) for r in ratios]


@pytest.mark.parametrize(("kind", "bits"), [("q8_0", 8.5), ("q4_0", 4.5)])
def test_ggmls_types_are_those_of_its_loops(kind: str, bits: float) -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    x[1, :32] = 0
    stored = encode_as(x, kind)  # type: ignore[arg-type]
    expected = [ggml(row[:32], kind) + ggml(row[32:], kind) for row in x.tolist()]
    torch.testing.assert_close(decode_from(stored, kind), torch.tensor(expected))  # type: ignore[arg-type]
    assert sum(part.nbytes for part in stored) * 8 / x.numel() == bits


def test_fp8_is_what_torch_casts_to_and_saturates() -> None:
    x = torch.tensor([[1e4, -1e4, 0.3, 2.0**-10]])
    assert decode_from(encode_as(x, "fp8"), "fp8").tolist() == [[448.0, -448.0, 0.3125, 0.0]]


def test_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="rows of 40 numbers: q4_0 needs a multiple of 32"):
        encode_as(torch.zeros(2, 40), "q4_0")
