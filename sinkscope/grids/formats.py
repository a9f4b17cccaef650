"""Number formats of serving engines, in which each vector is stored by itself: GGML's blocks, FP8, NVFP4, MXFP4."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.grids.grid import Grid, effective_bits, straight_through
from sinkscope.grids.packing import pack, unpack
from sinkscope.grids.rotations import Blocks, hadamard

Stored = tuple[Tensor, ...]  # codes, and the scales of formats that have some, over the rows of what was stored
E4M3_MAX = 448.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = 6.0
E2M1_EXPONENT = 2  # of its largest number
SMALLEST_SCALE = 1e-6


class RowFormat(ABC):
    """How a vector of numbers is stored. Subclasses are frozen dataclasses with `encode` and `decode`.

    No range is shared between vectors, so a cache can store each token as it arrives.
    """

    block: ClassVar[int] = 1
    """The numbers of a vector that are stored together: it must divide the vector's width."""

    @property
    def name(self) -> str:
        """How engines call it."""
        return type(self).__name__.lower()

    @abstractmethod
    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        """What is stored of x. Raises `InputError` if `block` does not divide the width."""

    @abstractmethod
    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        """The numbers that `encode` stored, in fp32."""

    def at(self, layer: int) -> RowFormat:
        """The format in one layer: another one where scales differ between layers."""
        return self

    def fitted(self, x: Float[Tensor, "..."]) -> RowFormat:
        """The format with the scale of a whole tensor, for formats that have one and leave it open (`scale` None)."""
        return self

    def rounded(self, x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """x after it was stored and read, in its own dtype, with the gradient of x (straight-through estimator)."""
        return straight_through(x, self.decode(self.encode(x.detach()), x.shape[-1]).to(x.dtype))

    def bits(self, width: int) -> float:
        """Bits per number of vectors of this width, scales included."""
        x = torch.zeros(1, width)
        # Fitted first, because a format whose scale is open refuses to encode.
        stored = self.fitted(x).encode(x)
        return 8 * sum(part.nbytes for part in stored) / width

    def describe(self) -> dict[str, Any]:
        """As JSON-able data."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **settings}

    def _blocks(self, x: Tensor) -> Float[Tensor, "*rows blocks block"]:
        if x.shape[-1] % self.block:
            raise InputError(f"rows of {x.shape[-1]} numbers: {self.name} needs a multiple of {self.block}")
        return x.float().unflatten(-1, (-1, self.block))


@dataclass(frozen=True)
class Q8_0(RowFormat):
    """GGML's q8_0: per block of 32 entries d = max|x| / 127 and round(x / d), d in 16 bits. 8.5 bits per number.

    Source: ggml/src/ggml-quants.c, `quantize_row_q8_0_ref`.
    """

    block: ClassVar[int] = 32

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        blocks = self._blocks(x)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        # Codes belong to the fp32 scale, although only its fp16 form is stored, as in ggml.
        ratio = torch.where(scale > 0, blocks / scale, 0.0)
        codes = (ratio.abs() + 0.5).floor().mul(ratio.sign()).to(torch.int8)  # halves away from zero, as roundf
        return codes.flatten(-2), scale[..., 0].half()

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        return _scaled(stored[0], stored[1], self.block)


class _Centered(RowFormat, ABC):
    """Codes −2^(b−1) … 2^(b−1) − 1 of x / d, where d = m / −2^(b−1) for the m of largest magnitude in a block."""

    block: ClassVar[int] = 32
    code_bits: ClassVar[int]

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        blocks = self._blocks(x)
        # Codes reach further below 0, so the scale gets the sign with which the largest number has the lowest code.
        # An equal number of the other sign would have one code too many, and is clamped.
        middle = 2 ** (self.code_bits - 1)
        scale = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -middle
        ratio = torch.where(scale != 0, blocks / scale, 0.0)
        codes = (ratio + middle + 0.5).floor().clamp(0, 2 * middle - 1).to(torch.uint8)
        return pack(codes.flatten(-2), self.code_bits), scale[..., 0].half()

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        codes = unpack(stored[0], self.code_bits, width).to(torch.int8) - 2 ** (self.code_bits - 1)
        return _scaled(codes, stored[1], self.block)


@dataclass(frozen=True)
class Q4_0(_Centered):
    """GGML's q4_0: per block of 32 entries d = m / −8 for the m of largest magnitude, and min(15, ⌊x / d + 8.5⌋).

    Two codes a byte and d in 16 bits: 4.5 bits per number. Source: ggml/src/ggml-quants.c, `quantize_row_q4_0_ref`.
    """

    code_bits: ClassVar[int] = 4


@dataclass(frozen=True)
class Q5_0(_Centered):
    """GGML's q5_0: q4_0 with 5 bits, d = m / −16 and min(31, ⌊x / d + 16.5⌋). 5.5 bits per number.

    Source: ggml/src/ggml-quants.c, `quantize_row_q5_0_ref`.
    """

    code_bits: ClassVar[int] = 5


class _FromMinimum(RowFormat, ABC):
    """Codes 0 … 2^b − 1 of (x − min) / d, where d = (max − min) / (2^b − 1) in a block; d and min in 16 bits each."""

    block: ClassVar[int] = 32
    code_bits: ClassVar[int]

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        blocks, top = self._blocks(x), 2**self.code_bits - 1
        low, high = blocks.aminmax(dim=-1, keepdim=True)
        scale = (high - low) / top
        # Codes belong to scale and minimum in fp32, although only their fp16 form is stored, as in ggml.
        ratio = torch.where(scale > 0, (blocks - low) / scale, 0.0)
        codes = (ratio + 0.5).floor().clamp(max=top).to(torch.uint8)
        return pack(codes.flatten(-2), self.code_bits), scale[..., 0].half(), low[..., 0].half()

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        codes, scale, low = stored
        scaled = _scaled(unpack(codes, self.code_bits, width), scale, self.block)
        return (scaled.unflatten(-1, (-1, self.block)) + low.float()[..., None]).flatten(-2)


@dataclass(frozen=True)
class Q4_1(_FromMinimum):
    """GGML's q4_1: per block of 32 entries d = (max − min) / 15 and ⌊(x − min) / d + ½⌋. 5 bits per number.

    Source: ggml/src/ggml-quants.c, `quantize_row_q4_1_ref`.
    """

    code_bits: ClassVar[int] = 4


@dataclass(frozen=True)
class Q5_1(_FromMinimum):
    """GGML's q5_1: per block of 32 entries d = (max − min) / 31 and ⌊(x − min) / d + ½⌋. 6 bits per number.

    Source: ggml/src/ggml-quants.c, `quantize_row_q5_1_ref`.
    """

    code_bits: ClassVar[int] = 5


@dataclass(frozen=True)
class IQ4_NL(RowFormat):
    """GGML's iq4_nl: 16 unequal levels, denser around 0, times a scale per block of 32 entries. 4.5 bits per number.

    The level v nearest to x / d' with d' = m / −127, for the m of largest magnitude; halves go up. What is stored is
    the d with the least Σ x² (x − d v)², which is Σ x³ v / Σ x² v². Source: ggml/src/ggml-quants.c,
    `quantize_row_iq4_nl_ref`, which caches use (files are written with a search over scales).
    """

    block: ClassVar[int] = 32
    levels: ClassVar[tuple[int, ...]] = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        blocks = self._blocks(x)
        levels = torch.tensor(self.levels, dtype=torch.float32, device=x.device)
        scale = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / levels[0]
        ratio = torch.where(scale != 0, blocks / scale, 0.0)
        codes = torch.bucketize(ratio, (levels[1:] + levels[:-1]) / 2, right=True)
        chosen = levels[codes]
        # In units of d', because x³ of small numbers is 0 in fp32.
        fit = (ratio**3 * chosen).sum(-1) / (ratio * chosen).square().sum(-1).clamp(min=1e-9)
        return pack(codes.to(torch.uint8).flatten(-2), 4), (scale[..., 0] * fit).half()

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        levels = torch.tensor(self.levels, dtype=torch.float32, device=stored[0].device)
        return _scaled(levels[unpack(stored[0], 4, width).long()], stored[1], self.block)


@dataclass(frozen=True)
class Fp8(RowFormat):
    """E4M3 of x / scale after saturation at ±448: one `scale` for a whole tensor, not stored. 8 bits per number.

    `scale`: a number, or one for each layer; None to fit it to each tensor, so that its largest number is 448. vLLM's
    `--kv-cache-dtype fp8` has 1.0 unless the checkpoint brings scales (vllm/model_executor/layers/quantization/
    kv_cache.py).
    """

    scale: float | Mapping[int, float] | None = 1.0

    def at(self, layer: int) -> Fp8:
        return Fp8(_of_layer(self.scale, layer))

    def fitted(self, x: Float[Tensor, "..."]) -> Fp8:
        return self if self.scale is not None else Fp8(largest_scale(x))

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        return (_e4m3_bytes(x.float() / _number(self.scale)),)

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        return _e4m3(stored[0]) * _number(self.scale)


@dataclass(frozen=True)
class Fp8Rows(RowFormat):
    """E4M3 of x / s with s = max(max|x| / 448, 1e-6) of each vector, stored in fp32. 8 + 32 / width bits per number.

    vLLM's `--kv-cache-dtype fp8_per_token_head` (vllm/v1/attention/ops/triton_reshape_and_cache_flash.py,
    `_reshape_cache_per_token_head`), dynamic activations per token, and weights per output channel.
    """

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        wide = x.float()
        scale = (wide.abs().amax(-1, keepdim=True) / E4M3_MAX).clamp(min=SMALLEST_SCALE)
        return _e4m3_bytes(wide * (1 / scale)), scale

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        return _e4m3(stored[0]) * stored[1]


@dataclass(frozen=True)
class NvFp4(RowFormat):
    """E2M1 in blocks of 16 with an E4M3 scale each, and one fp32 `scale` g for the tensor. 4.5 bits per number.

    s = E4M3(max|x| / (6 g)) and codes are E2M1(x / (s g)), halves to even; read back as code · s · g. `four_over_six`:
    a block also tries s = E4M3(max|x| / (4 g)), where its largest number becomes 4 instead of 6, and keeps whichever
    has the smaller squared error (Cook et al. 2025). g: a number, or one for each layer; None to fit it to each tensor,
    so that the largest scale is 448.

    vLLM's `--kv-cache-dtype nvfp4` and `nvfp4_4over6`, where 1 / g is the checkpoint's scale, 1.0 by default
    (csrc/nvfp4_kv_cache_kernels.cu; the paper fits g to a smaller largest scale, 256, which vLLM's cache does not). Not
    checked: the kernel's approximate reciprocals, which may move a number at the border of two codes.
    """

    scale: float | Mapping[int, float] | None = 1.0
    four_over_six: bool = False
    block: ClassVar[int] = 16

    def at(self, layer: int) -> NvFp4:
        return replace(self, scale=_of_layer(self.scale, layer))

    def fitted(self, x: Float[Tensor, "..."]) -> NvFp4:
        return self if self.scale is not None else replace(self, scale=largest_scale(x, E4M3_MAX * E2M1_MAX))

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        blocks = self._blocks(x)
        codes, scale = self._with_largest(blocks, E2M1_MAX)
        # E2M1 has no number between 4 and 6, so numbers just below the largest err most there; 4 avoids the gap.
        if self.four_over_six:
            others, other = self._with_largest(blocks, 4.0)
            errors = (self._read(codes, scale) - blocks).square().sum(-1, keepdim=True)
            better = (self._read(others, other) - blocks).square().sum(-1, keepdim=True) < errors
            codes, scale = torch.where(better, others, codes), torch.where(better, other, scale)
        return pack(codes.flatten(-2), 4), _e4m3_bytes(scale[..., 0])

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        codes = unpack(stored[0], 4, width).unflatten(-1, (-1, self.block))
        return self._read(codes, _e4m3(stored[1])[..., None]).flatten(-2)

    def _with_largest(self, blocks: Tensor, largest: float) -> tuple[Tensor, Tensor]:
        """Codes, and scales on the grid of E4M3, with which max|x| of a block becomes `largest`."""
        whole = _number(self.scale)
        # Codes belong to the rounded scale. A block whose scale underflows to 0 is stored as zeros.
        scale = _e4m3(_e4m3_bytes(blocks.abs().amax(-1, keepdim=True) / (largest * whole)))
        return _e2m1_codes(torch.where(scale > 0, blocks / (scale * whole), 0.0)), scale

    def _read(self, codes: Tensor, scale: Tensor) -> Tensor:
        return _e2m1(codes) * scale * _number(self.scale)


@dataclass(frozen=True)
class MxFp4(RowFormat):
    """E2M1 in blocks of 32 with a power of two each, saturated at 6. 4.25 bits per number.

    The power is 2^(⌊log₂ max|x|⌋ − 2), so that the largest number of a block lies between 4 and 8. Source: OCP
    Microscaling Formats v1.0, section 6.3; exponents below −127 are raised to it.
    """

    block: ClassVar[int] = 32

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        blocks = self._blocks(x)
        # frexp's mantissa is in [½, 1), so its exponent − 1 is ⌊log₂ max|x|⌋, exact also just below a power of two.
        exponent = blocks.abs().amax(-1, keepdim=True).frexp().exponent - 1 - E2M1_EXPONENT
        exponent = exponent.clamp(-127, 127)
        codes = _e2m1_codes(torch.ldexp(blocks, -exponent))
        return pack(codes.flatten(-2), 4), (exponent[..., 0] + 127).to(torch.uint8)

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        codes = unpack(stored[0], 4, width).unflatten(-1, (-1, self.block))
        return torch.ldexp(_e2m1(codes), stored[1].int()[..., None] - 127).flatten(-2)


@dataclass(frozen=True)
class Rotated:
    """Vectors are multiplied by Hadamard matrices before they are stored as `inner` says, and again when they are read.

    H / √size is orthonormal and symmetric, so twice gives x back, and (H q)·(H k) = q·k: an engine rotates the query
    instead of every cached key, and the output of attention instead of every cached value. Blocks are as large as the
    largest power of two that divides the width, and at most `largest`; widths that `multiple` does not divide are not
    rotated.

    Sources: Ashkboos et al. 2024 (QuaRot); llama.cpp, src/llama-kv-cache.cpp (`attn_rot_k`: keys in the largest blocks,
    values in blocks of 64, only if 64 divides the width); vllm/v1/attention/backends/turboquant_attn.py.
    """

    inner: Grid | RowFormat
    largest: int | None = None
    multiple: int = 2

    def matrix(self, width: int) -> Blocks | None:
        """What vectors of this width are multiplied by; None if they are not rotated."""
        size = width & -width
        size = size if self.largest is None else min(size, self.largest)
        return None if width % self.multiple or size < 2 else _blocks_of(size)

    def at(self, layer: int) -> Rotated:
        """The format in one layer."""
        return replace(self, inner=layer_numbers(self.inner, layer))  # type: ignore[arg-type]

    def describe(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {"name": "Rotated", "inner": described_numbers(self.inner), "largest": self.largest}


Numbers = Grid | RowFormat | Rotated
"""How keys, values or weights are rounded."""


def inner_of(numbers: Numbers) -> Grid | RowFormat:
    """What rounds, without a rotation around it."""
    return numbers.inner if isinstance(numbers, Rotated) else numbers


def rotation_of(numbers: Numbers, width: int) -> Blocks | None:
    """The rotation around it for vectors of this width; None if there is none."""
    return numbers.matrix(width) if isinstance(numbers, Rotated) else None


def layer_numbers(numbers: Numbers, layer: int) -> Numbers:
    """The numbers of one layer."""
    return numbers if isinstance(numbers, Grid) else numbers.at(layer)


def described_numbers(numbers: Numbers) -> dict[str, Any]:
    """As JSON-able data."""
    return dict(vars(numbers)) if isinstance(numbers, Grid) else numbers.describe()


def bits_of(numbers: Numbers, shape: tuple[int, ...]) -> float:
    """Bits per number of a tensor of `shape`, scales included."""
    numbers = inner_of(numbers)
    return effective_bits(numbers, shape) if isinstance(numbers, Grid) else numbers.bits(shape[-1])


def largest_scale(x: Float[Tensor, "..."], top: float = E4M3_MAX) -> float:
    """max|x| / top, at least 1e-6: the calibrated scale of a tensor, with which its largest number is `top`."""
    return max(float(x.detach().abs().max()) / top, SMALLEST_SCALE)


@cache
def _blocks_of(size: int) -> Blocks:
    return Blocks(hadamard(size).float())


def _e4m3_bytes(x: Tensor) -> UInt8[Tensor, "..."]:
    """E4M3 after saturation, as bytes: few operators take tensors of torch's own type."""
    # E4M3 has no infinity: without the clamp, torch's cast turns larger numbers into NaN.
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _e4m3(stored: UInt8[Tensor, "..."]) -> Tensor:
    return stored.view(torch.float8_e4m3fn).float()


def _scaled(codes: Tensor, scale: Tensor, block: int) -> Tensor:
    return (codes.float().unflatten(-1, (-1, block)) * scale.float()[..., None]).flatten(-2)


# The upper end of each code's interval. Halves go to the code that is even, so 0.75, 1.75 and 3.5 go up, and
# bucketize, which counts the ends below x, gets the numbers just below them.
_ENDS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_ENDS[1::2] = torch.nextafter(_ENDS[1::2], torch.zeros(3))
_LEVELS = torch.tensor([*E2M1, *(-level for level in E2M1)])


def _e2m1_codes(x: Tensor) -> Integer[Tensor, "..."]:
    """The 4-bit codes of numbers, saturated at 6: magnitude in the lower three bits, then the sign."""
    return (torch.bucketize(x.abs(), _ENDS.to(x.device)) + 8 * x.signbit()).to(torch.uint8)


def _e2m1(codes: Integer[Tensor, "..."]) -> Tensor:
    return _LEVELS.to(codes.device)[codes.long()]


def _number(scale: float | Mapping[int, float] | None) -> float:
    if scale is None or isinstance(scale, Mapping):
        raise InputError("the scale is open: take that of one layer with .at(layer), or fit it with .fitted(x)")
    return scale


def _of_layer(scale: float | Mapping[int, float] | None, layer: int) -> float | None:
    if not isinstance(scale, Mapping):
        return scale
    if layer not in scale:
        raise InputError(f"no scale was calibrated for layer {layer}")
    return scale[layer]
