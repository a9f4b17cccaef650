"""The largest activations of the residual stream: the entries (Sun et al. 2024), and each token's maximum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.errors import InputError, check_whole, is_number
from sinkscope.measurement.observers.observer import Array, Hidden, LayerSums, Observer, Piece, divide, in_every
from sinkscope.measurement.observers.rows import lower_median, whole, whole_rows


@in_every
@dataclass(frozen=True)
class MassiveActivations(Observer):
    """The largest |h| of a row per depth, and the median |h| over its real tokens × dimensions.

    Keeps every entry above `ratio` medians and the next one, at least `top` and at most one per token, so that the
    definition misses none, in O(tokens) memory. `hidden_top` (signed values, largest magnitude first),
    `hidden_top_position` (counting real tokens), `hidden_top_dimension`, each (sample, depth, top), NaN where a row has
    fewer, and `hidden_median` (sample, depth), the lower one of two middle values. The thresholds of the definition are
    applied later, by `metrics.massive_entries`. NaN for rows that a cache continues: neither can be accumulated over
    passes. Cost: O(T · width) per block, a few passes over the activations; memory O(T · width) temporarily, O(T) kept.
    Source: Sun et al. 2024.
    """

    top: int = 8
    ratio: float = 1000.0

    def __post_init__(self) -> None:
        check_whole("top", self.top)
        if not is_number(self.ratio, 0):
            raise InputError(f"ratio = {self.ratio!r}: expected a number of medians above 0, such as 1000")

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        return whole_rows(hidden, self._of_row)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "value" not in layer.sums:
            return {}
        named = {
            name: Array(divide(whole(layer, kind), layer.sums["shown"]), None, ("top",))
            for name, kind in (
                ("hidden_top", "value"),
                ("hidden_top_position", "position"),
                ("hidden_top_dimension", "dimension"),
            )
        }
        return {**named, "hidden_median": Array(whole(layer, "median"), None)}

    def _of_row(self, values: Float[Tensor, "position width"]) -> Mapping[str, Tensor]:
        magnitudes = values.abs()
        width = values.shape[1]
        peaks = magnitudes.amax(1)
        # A partition among NaN gives no median, so that of a broken row is set to NaN, which is reported.
        median = lower_median(magnitudes.flatten()).where(peaks.isfinite().all(), torch.nan)
        # Only tokens whose peak is above the border have entries above it, so the others are not searched again.
        massive = int((magnitudes[peaks > self.ratio * median] > self.ratio * median).sum())
        count = max(self.top, min(massive + 1, len(values)))
        # The largest entries overall are in the tokens with the largest peaks.
        tokens = peaks.topk(min(count, len(values))).indices
        index = magnitudes[tokens].flatten().topk(min(count, len(tokens) * width)).indices
        position, dimension = tokens[index // width], index % width
        # A row with fewer entries is filled up; `shown` is 0 there, and the division gives NaN.
        blank = values.new_zeros(count - len(index))
        return {
            "value": torch.cat([values[position, dimension], blank]),
            "position": torch.cat([position.float(), blank]),
            "dimension": torch.cat([dimension.float(), blank]),
            "shown": torch.cat([torch.ones_like(index, dtype=torch.float32), blank]),
            "median": median,
        }


@in_every
@dataclass(frozen=True)
class TokenPeaks(Observer):
    """max over dimensions of |h_t|, the infinity norm of each token, per depth: `hidden_max` (sample, depth, position).

    What `metrics.infinity_norm` (Bondarenko et al. 2023) and PrefixQuant's ratios of token-wise maxima,
    `metrics.token_peak_ratios`, are made of. Passes over a cache add their tokens. Cost: O(T · width) a block.
    """

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        yield Piece("peak", hidden.peaks[:, None], hidden.start)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "peak" not in layer.sums:
            return {}
        return {"hidden_max": Array(layer.sums["peak"].where(layer.observed[:, None], torch.nan), "query")}
