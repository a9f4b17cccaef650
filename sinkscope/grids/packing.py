"""Codes of 1 to 8 bits packed into bytes."""

from __future__ import annotations

import torch
from jaxtyping import Integer, UInt8
from torch import Tensor
from torch.nn import functional

PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
"""The widths into which a code is split, lowest bits first; each divides a byte."""


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that `count` codes take."""
    return sum(-(-count * width // 8) for width in PLANES[bits])


def pack(codes: Integer[Tensor, "*rows n"], bits: int) -> UInt8[Tensor, "*rows bytes"]:
    """Codes from 0 to 2^bits − 1 in `packed_bytes(n, bits)` bytes.

    Codes of 3, 5, 6 and 7 bits are split into planes of 4, 2 and 1 bits. Byte i of a plane of m bytes holds codes
    i, i + m, i + 2m, …, so that unpacking writes contiguous runs.
    """
    planes, shift = [], 0
    for width in PLANES[bits]:
        plane = (codes >> shift).to(torch.uint8) & (2**width - 1)
        per = 8 // width
        size = -(-plane.shape[-1] // per)
        # (…, codes per byte, bytes)
        plane = functional.pad(plane, (0, size * per - plane.shape[-1])).unflatten(-1, (per, size))
        # The shifted codes share no bits, so their sum is their bitwise or and fits a byte.
        planes.append((plane << _shifts(width, plane.device)).sum(-2, dtype=torch.uint8))
        shift += width
    return torch.cat(planes, -1)


def unpack(packed: UInt8[Tensor, "*rows bytes"], bits: int, count: int) -> UInt8[Tensor, "*rows n"]:
    """The `count` codes that `pack` packed."""
    if bits == 8:
        return packed  # the stored bytes themselves, not a copy: callers must not write to them
    codes: Tensor | None = None
    start = shift = 0
    for width in PLANES[bits]:
        size = -(-count * width // 8)
        # (…, codes per byte, bytes). The shift makes a new tensor, so the in-place operations leave `packed` alone.
        plane = packed[..., None, start : start + size] >> _shifts(width, packed.device)
        plane = plane.bitwise_and_(2**width - 1).flatten(-2)[..., :count]
        codes = plane if codes is None else codes.bitwise_or_(plane.bitwise_left_shift_(shift))
        start, shift = start + size, shift + width
    assert codes is not None
    return codes


def _shifts(width: int, device: torch.device) -> UInt8[Tensor, "codes 1"]:
    """By how many bits each code of a byte is shifted."""
    return torch.arange(0, 8, width, dtype=torch.uint8, device=device)[:, None]
