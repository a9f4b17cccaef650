"""Codes of 1 to 8 bits, side by side in bytes."""

from __future__ import annotations

import torch
from jaxtyping import Integer, UInt8
from torch import Tensor
from torch.nn import functional

PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
"""The widths that a code is cut into, each of which divides a byte: its lowest bits first."""


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that so many codes take."""
    return sum(-(-count * width // 8) for width in PLANES[bits])


def pack(codes: Integer[Tensor, "*rows n"], bits: int) -> UInt8[Tensor, "*rows bytes"]:
    """Codes from 0 to 2^bits − 1 in `packed_bytes(n, bits)` bytes.

    Codes of 3, 5, 6 and 7 bits are cut into planes of 4, 2 and 1 bits. Byte i of a plane of m bytes holds codes
    i, i + m, i + 2m, …, so that unpacking writes stretches rather than single numbers.
    """
    planes, shift = [], 0
    for width in PLANES[bits]:
        part = (codes >> shift).to(torch.uint8) & (2**width - 1)
        per = 8 // width
        size = -(-part.shape[-1] // per)
        part = functional.pad(part, (0, size * per - part.shape[-1])).unflatten(-1, (per, size))
        places = _places(width, part.device)
        planes.append((part << places).sum(-2, dtype=torch.uint8))
        shift += width
    return torch.cat(planes, -1)


def unpack(packed: UInt8[Tensor, "*rows bytes"], bits: int, count: int) -> UInt8[Tensor, "*rows n"]:
    """The `count` codes that were packed."""
    if bits == 8:
        return packed
    found: Tensor | None = None
    start = shift = 0
    for width in PLANES[bits]:
        size = -(-count * width // 8)
        part = packed[..., None, start : start + size] >> _places(width, packed.device)
        part = part.bitwise_and_(2**width - 1).flatten(-2)[..., :count]
        found = part if found is None else found.bitwise_or_(part.bitwise_left_shift_(shift))
        start, shift = start + size, shift + width
    assert found is not None
    return found


def _places(width: int, device: torch.device) -> UInt8[Tensor, "codes 1"]:
    """How far the codes of a byte are shifted."""
    return torch.arange(0, 8, width, dtype=torch.uint8, device=device)[:, None]
