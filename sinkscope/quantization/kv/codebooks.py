"""Keys and values on levels that are not evenly spaced, outliers set aside (KVQuant, Hooper et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.quantization.grid import Grid, straight_through

SHARE = 0.01  # of the numbers that are set aside
ROUNDS = 100  # of k-means at most
SPARSE_BITS = 32  # that a number set aside takes: itself and its place
MOST = 8  # bits of a code


@dataclass(frozen=True, eq=False)
class LayerCodes:
    """Of one layer: the range of each channel of its keys, and the levels of keys and of values, from −1 to 1."""

    low: Float[Tensor, "kv_heads dim"]
    high: Float[Tensor, "kv_heads dim"]
    keys: Float[Tensor, " level"]
    values: Float[Tensor, " level"]


@dataclass(frozen=True, eq=False)
class Codebooks:
    """2^bits levels for keys and for values of each layer, placed where errors matter. Made by `find_codebooks`.

    Keys, as they are before positions turn them: with l_c, h_c the range of channel c that calibration found between
    its quantiles outliers/2 and 1 − outliers/2, u = (2 x − l_c − h_c) / (h_c − l_c) is rounded to the nearest level;
    what lies outside of the range is set aside and stays as it is. Values: the same with the range of each token, over
    all heads, of which the share `outliers` that lies farthest from the token's median is set aside. Nothing looks
    ahead: a token is rounded when it comes.

    Levels minimize Σ F (x̂ − x)² over calibration tokens, with F = (∂ loss / ∂ x)², by k-means; protected tokens are no
    part of them. The paper's code weighs scaled numbers by F alone; here errors count in the numbers' own size. It also
    leaves levels and ranges of values to calibration by token classes; ours finds ranges of values token by token.
    """

    bits: int
    outliers: float
    layers: Mapping[int, LayerCodes] = field(repr=False)

    @property
    def bits_a_number(self) -> float:
        """Bits that a number takes, those set aside counted with their places; ranges of values come to it."""
        return self.bits + self.outliers * SPARSE_BITS

    @property
    def grids(self) -> tuple[Grid, Grid]:
        """Who shares a range: a channel of keys, a token of values."""
        return Grid(self.bits, "channel"), Grid(self.bits, "token")

    def rounded_keys(
        self, layer: int, x: Float[Tensor, "batch heads token dim"], left: Bool[Tensor, "batch token"]
    ) -> Float[Tensor, "batch heads token dim"]:
        """Keys before rotation on their levels; tokens where `left` is True stay."""
        codes = self._of(layer)
        low, high = (part.to(x.device)[:, None] for part in (codes.low, codes.high))
        aside = (x < low) | (x > high)
        return _kept(x, on_levels(x.detach().float(), low, high, codes.keys), aside | left[:, None, :, None])

    def rounded_values(
        self, layer: int, x: Float[Tensor, "batch heads token dim"], left: Bool[Tensor, "batch token"]
    ) -> Float[Tensor, "batch heads token dim"]:
        """Values on their levels; tokens where `left` is True stay."""
        wide = x.detach().float()
        aside = outlying(wide, self.outliers)
        low, high = token_range(wide, aside)
        return _kept(x, on_levels(wide, low, high, self._of(layer).values), aside | left[:, None, :, None])

    def describe(self) -> dict[str, Any]:
        """As JSON-able data, the levels of every layer among it."""
        layers = {
            str(layer): {"keys": codes.keys.tolist(), "values": codes.values.tolist()}
            for layer, codes in self.layers.items()
        }
        return {"name": "Codebooks", "bits": self.bits, "outliers": self.outliers, "levels": layers}

    def _of(self, layer: int) -> LayerCodes:
        if layer not in self.layers:
            raise InputError(f"no levels were found for layer {layer}: make the codebooks with this model")
        return self.layers[layer]


def check(bits: int, outliers: float) -> None:
    """Raises `InputError` for bits outside 1 … 8, and for a share that is none."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MOST:
        raise InputError(f"codebooks of {bits!r} bits: expected a whole number from 1 to {MOST}")
    if not 0 <= outliers < 0.5:
        raise InputError(f"outliers = {outliers!r}: expected a share of the numbers, from 0 to below 0.5")


def levels_of(
    points: Float[Tensor, " point"], weights: Float[Tensor, " point"], count: int
) -> Float[Tensor, " {count}"]:
    """Levels of small Σ w (nearest level − x)²: k-means from the weighted quantiles, each level the mean of its points.

    Rising; a level that no point is nearest to stays where it was. Where all weights are 0, they count as 1.
    """
    order = points.argsort()
    x, w = points[order].double(), weights[order].double()
    w = torch.ones_like(w) if not bool(w.any()) else w
    mass = w.cumsum(0)
    wanted = (torch.arange(count, dtype=torch.float64, device=x.device) + 0.5) / count * mass[-1]
    levels = x[torch.searchsorted(mass, wanted).clamp(max=len(x) - 1)]
    for _ in range(ROUNDS):
        nearest = torch.bucketize(x, (levels[1:] + levels[:-1]) / 2)
        total = torch.zeros_like(levels).index_add_(0, nearest, w)
        sums = torch.zeros_like(levels).index_add_(0, nearest, w * x)
        moved = torch.where(total > 0, sums / total.clamp(min=1e-300), levels)
        if torch.equal(moved, levels):
            break
        levels = moved.sort().values
    return levels.float()


def on_levels(x: Float[Tensor, "..."], low: Tensor, high: Tensor, levels: Float[Tensor, " level"]) -> Tensor:
    """x at the nearest level of its range; a range of one value is that value."""
    levels = levels.to(x.device)
    middle, half = (high + low) / 2, (high - low) / 2
    scaled = torch.where(half > 0, (x - middle) / half, 0.0)
    nearest = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2)
    return torch.where(half > 0, middle + half * levels[nearest], middle)


def outlying(x: Float[Tensor, "batch heads token dim"], share: float) -> Bool[Tensor, "batch heads token dim"]:
    """Of each token the share of its numbers, over all heads, that lies farthest from its median; rounded down."""
    flat = x.transpose(1, 2).flatten(2)
    count = int(share * flat.shape[-1])
    far = (flat - flat.median(-1, keepdim=True).values).abs()
    found = torch.zeros_like(flat, dtype=torch.bool)
    if count:
        found.scatter_(-1, far.topk(count, -1).indices, True)
    return found.unflatten(-1, (x.shape[1], x.shape[3])).transpose(1, 2)


def token_range(x: Tensor, aside: Tensor) -> tuple[Tensor, Tensor]:
    """The range of each token over all heads, (batch, 1, token, 1), what is set aside left out."""
    return (
        x.masked_fill(aside, torch.inf).amin((1, 3), keepdim=True),
        x.masked_fill(aside, -torch.inf).amax((1, 3), keepdim=True),
    )


def _kept(x: Tensor, rounded: Tensor, stays: Tensor) -> Tensor:
    return straight_through(x, torch.where(stays, x.detach(), rounded.to(x.dtype)))
