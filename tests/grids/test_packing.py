"""Packed codes come back, in as many bytes as they need."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.grids import pack, packed_bytes, unpack
from sinkscope.grids.packing import PLANES


@given(bits=st.integers(1, 8), count=st.integers(1, 37), seed=st.integers(0, 9))
def test_codes_come_back(bits: int, count: int, seed: int) -> None:
    codes = torch.randint(0, 2**bits, (2, 3, count), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (2, 3, packed_bytes(count, bits))
    assert torch.equal(unpack(packed, bits, count).int(), codes)


def test_whole_bytes_are_used() -> None:
    assert all(packed_bytes(64, bits) == 8 * bits for bits in PLANES)
    assert [packed_bytes(1, bits) for bits in range(1, 9)] == [1, 1, 2, 1, 2, 2, 3, 1]
    assert all(sum(planes) == bits for bits, planes in PLANES.items())
