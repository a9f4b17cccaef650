"""Keys and values on unevenly spaced levels, with outliers stored separately (KVQuant, Hooper et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.grids.grid import Grid, straight_through

SHARE = 0.01  # the default share of outliers
ROUNDS = 100  # of k-means, at most
SPARSE_BITS = 32  # bits of an outlier: the number and its index
MOST = 8  # bits of a code, at most


@dataclass(frozen=True, eq=False)
class LayerCodes:
    """For one layer: the range of each key channel, and the levels of keys and of values, from −1 to 1."""

    low: Float[Tensor, "kv_heads dim"]
    high: Float[Tensor, "kv_heads dim"]
    keys: Float[Tensor, " level"]
    values: Float[Tensor, " level"]


@dataclass(frozen=True, eq=False)
class Codebooks:
    """2^bits levels for the keys and for the values of each layer, placed by the loss's sensitivity.

    Made by `find_codebooks`. Keys, before rotation: let l_c and h_c be the range of channel c that calibration measured
    between its quantiles outliers/2 and 1 − outliers/2. u = (2 x − l_c − h_c) / (h_c − l_c) is rounded to the nearest
    level; entries outside the range are outliers and stay unchanged. Values: the same with the range of each token over
    all heads; its outliers are the share `outliers` farthest from the token's median. Each token is rounded when it
    arrives, without looking ahead.

    The levels minimize Σ F (x̂ − x)² over calibration tokens, F = (∂ loss / ∂ x)², by k-means, without protected tokens.
    Differences from the paper's code: it weights scaled numbers by F alone, while errors here are in the numbers' own
    units; it leaves the ranges of values to calibration by token class, while ours are computed token by token.
    """

    bits: int
    outliers: float
    layers: Mapping[int, LayerCodes] = field(repr=False)

    @property
    def bits_a_number(self) -> float:
        """Bits per number, including outliers with their indices; the ranges of values come on top."""
        return self.bits + self.outliers * SPARSE_BITS

    @property
    def grids(self) -> tuple[Grid, Grid]:
        """The grids whose ranges these are: per channel for keys, per token for values."""
        return Grid(self.bits, "channel"), Grid(self.bits, "token")

    def rounded_keys(
        self, layer: int, x: Float[Tensor, "batch heads token dim"], protected: Bool[Tensor, "batch token"]
    ) -> Float[Tensor, "batch heads token dim"]:
        """Keys before rotation on their levels; protected tokens stay unchanged."""
        codes = self._layer(layer)
        # (kv_heads, 1, dim), against (batch, kv_heads, token, dim).
        low, high = (end.to(x.device)[:, None] for end in (codes.low, codes.high))
        outliers = (x < low) | (x > high)
        rounded = on_levels(x.detach().float(), low, high, codes.keys)
        return _except(x, rounded, outliers | protected[:, None, :, None])

    def rounded_values(
        self, layer: int, x: Float[Tensor, "batch heads token dim"], protected: Bool[Tensor, "batch token"]
    ) -> Float[Tensor, "batch heads token dim"]:
        """Values on their levels; protected tokens stay unchanged."""
        wide = x.detach().float()
        outliers = outlying(wide, self.outliers)
        low, high = token_range(wide, outliers)
        rounded = on_levels(wide, low, high, self._layer(layer).values)
        return _except(x, rounded, outliers | protected[:, None, :, None])

    def describe(self) -> dict[str, Any]:
        """As JSON-able data, including the levels of each layer."""
        layers = {
            str(layer): {"keys": codes.keys.tolist(), "values": codes.values.tolist()}
            for layer, codes in self.layers.items()
        }
        return {"name": "Codebooks", "bits": self.bits, "outliers": self.outliers, "levels": layers}

    def _layer(self, layer: int) -> LayerCodes:
        if layer not in self.layers:
            raise InputError(f"these codebooks have no levels for layer {layer}: make them with find_codebooks(model)")
        return self.layers[layer]


def check_codebooks(bits: int, outliers: float) -> None:
    """Raises `InputError` for bits outside 1…8 and shares outside 0…½."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MOST:
        raise InputError(f"codebooks of {bits!r} bits: expected a whole number from 1 to {MOST}")
    if not 0 <= outliers < 0.5:
        raise InputError(f"outliers = {outliers!r}: expected a share of the numbers, at least 0 and below 0.5")


def levels_of(
    points: Float[Tensor, " point"], weights: Float[Tensor, " point"], count: int
) -> Float[Tensor, " {count}"]:
    """Levels that make Σ w (nearest level − x)² small: k-means, started at the weighted quantiles.

    In increasing order; a level without points stays where it is. If all weights are 0, they count as 1.
    """
    order = points.argsort()
    # In fp64: the weights are squared gradients of very different sizes, summed over all calibration tokens.
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
    """x at the nearest level of its range; a range of a single value gives that value."""
    levels = levels.to(x.device)
    middle, half = (high + low) / 2, (high - low) / 2
    scaled = torch.where(half > 0, (x - middle) / half, 0.0)
    nearest = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2)
    return torch.where(half > 0, middle + half * levels[nearest], middle)


def outlying(x: Float[Tensor, "batch heads token dim"], share: float) -> Bool[Tensor, "batch heads token dim"]:
    """The given share of each token's numbers, over all heads, farthest from its median; the count is floored."""
    # (batch, token, heads · dim): the numbers of all heads compete for a token's share.
    flat = x.transpose(1, 2).flatten(2)
    count = int(share * flat.shape[-1])
    far = (flat - flat.median(-1, keepdim=True).values).abs()
    mask = torch.zeros_like(flat, dtype=torch.bool)
    if count:
        mask.scatter_(-1, far.topk(count, -1).indices, True)
    return mask.unflatten(-1, (x.shape[1], x.shape[3])).transpose(1, 2)


def token_range(x: Tensor, outliers: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of each token's range over all heads, (batch, 1, token, 1), without its outliers."""
    # More than half of a token's numbers are left (`check_codebooks`), so both ends are finite.
    return (
        x.masked_fill(outliers, torch.inf).amin((1, 3), keepdim=True),
        x.masked_fill(outliers, -torch.inf).amax((1, 3), keepdim=True),
    )


def _except(x: Tensor, rounded: Tensor, unchanged: Tensor) -> Tensor:
    return straight_through(x, torch.where(unchanged, x.detach(), rounded.to(x.dtype)))
