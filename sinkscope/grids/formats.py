"""Number formats of serving engines: GGML's q8_0 and q4_0, and 8-bit floating point (E4M3)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.errors import InputError

NumberFormat = Literal["q8_0", "q4_0", "fp8"]
Stored = tuple[Tensor, ...]  # codes, and the scales of formats that have some
BLOCK = 32  # entries that share a scale in GGML's types
E4M3_MAX = 448.0


def encode_as(x: Float[Tensor, "*rows dim"], numbers: NumberFormat) -> Stored:
    """What is stored of x.

    - fp8: E4M3 after saturation at ±448, scale 1.0. 8 bits per number.
    - q8_0: per block of 32 entries d = max|x| / 127 and round(x / d), d in 16 bits. 8.5 bits per number.
    - q4_0: d = m / −8 for the m of largest magnitude, and min(15, ⌊x / d + 8.5⌋), two codes a byte. 4.5 bits.

    Raises `InputError` if 32 does not divide the width. Source: ggml/src/ggml-quants.c, `quantize_row_q8_0_ref` and
    `quantize_row_q4_0_ref`.
    """
    if numbers == "fp8":
        return (x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn),)
    if x.shape[-1] % BLOCK:
        raise InputError(f"rows of {x.shape[-1]} numbers: {numbers} needs a multiple of {BLOCK}")
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    if numbers == "q8_0":
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        ratio = torch.where(scale > 0, blocks / scale, 0.0)
        codes = (ratio.abs() + 0.5).floor().mul(ratio.sign()).to(torch.int8)  # halves away from zero, as roundf
        return codes.flatten(-2), scale[..., 0].half()
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    ratio = torch.where(scale != 0, blocks / scale, 0.0)
    nibbles = (ratio + 8.5).floor().clamp(0, 15).to(torch.uint8).flatten(-2)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scale[..., 0].half()


def decode_from(stored: Stored | list[Tensor], numbers: NumberFormat) -> Float[Tensor, "*rows dim"]:
    """The numbers that `encode_as` stored, in fp32."""
    if numbers == "fp8":
        return stored[0].float()
    codes, scale = stored
    if numbers == "q4_0":
        codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).to(torch.int16) - 8
    return (codes.float().unflatten(-1, (-1, BLOCK)) * scale.float()[..., None]).flatten(-2)
