"""The attention weights that a kernel loses when it casts them to 8-bit floating point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from sinkscope.measurement import Array, LayerSums, Observer, Piece, divide

LOST = 2.0**-10  # half of e4m3's least positive number, 2^-9: up to here, rounding to even gives 0
SCALE = 256  # kernels multiply by this before the cast
BLOCK = 64  # keys that a kernel processes at once
CASTS = ("forward", "reverse", "forward, unscaled")


@dataclass(frozen=True)
class Fp8Underflow(Observer):
    """The share of attention weights that a cast of P to e4m3 zeroes: `fp8_underflow` (sample, layer, head, cast).

    A kernel walks over blocks of 64 keys, with P[t, k] = exp(s[t, k] − m[t]) and m[t] the largest score so far. The
    cast gives 0 if 256 · P ≤ 2^−10, that is s − m ≤ −(10 ln 2 + ln 256). If a sink is in the first block, m is the
    sink's from then on: "forward". "reverse" walks from the last block to the first, so that the sink comes last;
    "forward, unscaled" omits the factor 256. `fp8_lost_mass`: the attention in these weights, averaged over queries.
    Over the pairs that a query sees; weights that are 0 in fp32 count as unseen.

    Source: Lau 2026, who gives the share for Gaussian scores in closed form; here it is counted. Cost: a pass over the
    weights in chunks.
    """

    @property
    def coordinates(self) -> Mapping[str, Sequence[str]]:
        return {"cast": CASTS}

    @property
    def reads_weights_alone(self) -> bool:
        return True

    def reads_chunks(self, call: Any) -> bool:
        return True

    def on_chunk(self, call: Any, chunk: Any) -> Iterable[Piece]:
        # Zeros in front, so that blocks begin where the kernel's do.
        weights = functional.pad(chunk.weights, (chunk.columns.start % BLOCK, 0))
        seen = (weights > 0).sum((-2, -1))
        # P = w / (largest w so far): the softmax's denominator cancels.
        lost = [
            weights * scale <= LOST * running_largest(weights, order == "reverse")
            for order, scale in (("forward", SCALE), ("reverse", SCALE), ("forward", 1))
        ]
        zeroed = [one & (weights > 0) for one in lost]
        yield Piece("lost", torch.stack([one.sum((-2, -1)) for one in zeroed], -1).float(), None, chunk.samples)
        yield Piece("mass", torch.stack([(weights * one).sum((-2, -1)) for one in zeroed], -1), None, chunk.samples)
        yield Piece("seen", seen.float()[..., None], None, chunk.samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "lost" not in layer.sums:
            return {}
        share = divide(layer.sums["lost"], layer.sums["seen"])
        mass = divide(layer.sums["mass"], layer.query_count[:, None, None])
        return {"fp8_underflow": Array(share, None, ("cast",)), "fp8_lost_mass": Array(mass, None, ("cast",))}


def running_largest(
    weights: Float[Tensor, "batch heads query key"], reverse: bool
) -> Float[Tensor, "batch heads query key"]:
    """For each key, the largest weight of its block and of the blocks that a kernel processed before."""
    keys = weights.shape[-1]
    blocks = functional.pad(weights, (0, -keys % BLOCK)).unflatten(-1, (-1, BLOCK)).amax(-1)
    largest = blocks.flip(-1).cummax(-1).values.flip(-1) if reverse else blocks.cummax(-1).values
    return largest.repeat_interleave(BLOCK, -1)[..., :keys]
