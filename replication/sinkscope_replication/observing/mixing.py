"""How far tokens are from being one and the same, whatever the length of their states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.measurement import Array, Hidden, LayerSums, Observer, Piece, divide, whole, whole_rows

SPREAD, DISTANCE = "relative_spread", "relative_pair_distance"


@dataclass(frozen=True)
class RelativeMixing(Observer):
    """`Mixing` as shares of the states' lengths, over the real tokens from the second on, per row and depth.

    With H the states h_1 … h_n (0-based; h_0, whose massive activation would decide all, is left out):
    `relative_spread` = ‖H − 1 mean(H)ᵀ‖_F / ‖H‖_F in [0, 1], 0 at rank collapse, 1 where states cancel;
    `relative_pair_distance` = ‖h_n − h_{n−1}‖ / ((‖h_n‖ + ‖h_{n−1}‖) / 2) in [0, 2]. Neither changes when the stream is
    scaled. NaN where there are no two such tokens, where states are zero, and for rows that a cache continues. Cost:
    O(T · width) a block. After Barbero et al. 2024 and 2025, who compare absolute lengths.
    """

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        return whole_rows(hidden, _relative)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if SPREAD not in layer.sums:
            return {}
        counts = {name: layer.sums[f"{name} is there"] for name in (SPREAD, DISTANCE)}
        return {name: Array(divide(whole(layer, name), count), None) for name, count in counts.items()}


def _relative(values: Float[Tensor, "position width"]) -> Mapping[str, Tensor]:
    """Both shares, and whether each is defined: NaN means activations that are not finite."""
    states = values[1:] if len(values) > 2 else values.new_zeros(2, values.shape[1])
    before, last = states[-2:]
    shares = {
        SPREAD: ((states - states.mean(0)).norm(), states.norm()),
        DISTANCE: (2 * (last - before).norm(), last.norm() + before.norm()),
    }
    tiny = torch.finfo(values.dtype).tiny
    ratios = {name: part / length.clamp(min=tiny) for name, (part, length) in shares.items()}
    return ratios | {f"{name} is there": (length > 0).float() for name, (_, length) in shares.items()}
