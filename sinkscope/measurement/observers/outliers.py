"""Outliers among the entries of the residual stream, by token and by dimension.

Source: Lin et al. 2024; Bondarenko et al. 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.errors import InputError, is_number
from sinkscope.measurement.observers.observer import Array, Hidden, LayerSums, Observer, Piece, divide, in_every
from sinkscope.measurement.observers.rows import lower_median, where, whole, whole_rows

EPSILON = 1e-6  # of the published code, added to std⁴


@in_every
@dataclass(frozen=True)
class OutlierStatistics(Observer):
    """Kurtosis by two definitions, max over median, and where the outliers are, per row and depth (Lin et al. 2024).

    With the entries x of a row's real tokens × dimensions, their mean µ and population standard deviation σ:

    - `kurtosis` = mean (x − µ)⁴ / (σ⁴ + 10⁻⁶), all entries as one list; 3 for Gaussian ones (Bondarenko et al. 2023).
      Where σ is not far above 0.03, as in the first depths of small models, the published constant pulls it down.
    - `kurtosis_neurons` = mean_j s_j⁴ / (mean_j s_j²)², s_j² the mean over tokens of x_tj², without centering: 1 where
      all neurons are equally strong, width where one has all the energy (He et al. 2024).
    - `max_median_ratio` = mean over tokens of max_j |x_tj| / median_j |x_tj| (He et al. 2024; the mean is our choice;
      tokens with median 0 do not count).
    - `outlier_count` (sample, depth, sigma): entries with |x − µ| > sigma · σ. `outlier_token_share`,
      `outlier_dimension_share`: the largest part of them that one token, one dimension holds; NaN where there are none.
      One token's outliers give (1, ~0), one channel's (~1/T, 1).

    NaN for rows that a cache continues. Cost: O(T · width) a block, about a dozen passes over the activations.
    """

    sigmas: Sequence[float] = (3.0, 6.0, 12.0)

    def __post_init__(self) -> None:
        sigmas = tuple(self.sigmas) if isinstance(self.sigmas, Iterable) else ()
        if not sigmas or not all(is_number(sigma, 0) for sigma in sigmas):
            raise InputError(f"sigmas = {self.sigmas!r}: expected positive numbers such as (3.0, 6.0)")
        object.__setattr__(self, "sigmas", tuple(map(float, sigmas)))

    @property
    def coordinates(self) -> Mapping[str, Sequence[float]]:
        return {"sigma": self.sigmas}

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        return whole_rows(hidden, self._of_row)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "kurtosis" not in layer.sums:
            return {}
        count = whole(layer, "count")
        return {
            "kurtosis": Array(whole(layer, "kurtosis"), None),
            "kurtosis_neurons": Array(whole(layer, "kurtosis_neurons"), None),
            "max_median_ratio": Array(divide(whole(layer, "peaks"), layer.sums["peaked"]), None),
            "outlier_count": Array(count, None, ("sigma",)),
            "outlier_token_share": Array(divide(layer.sums["in_token"], count), None, ("sigma",)),
            "outlier_dimension_share": Array(divide(layer.sums["in_dimension"], count), None, ("sigma",)),
        }

    def _of_row(self, values: Float[Tensor, "position width"]) -> Mapping[str, Tensor]:
        distances = values - values.mean()
        squares = distances.square()
        variance = squares.mean()
        energies = values.square().mean(0)
        magnitudes = values.abs()
        medians = lower_median(magnitudes)
        peaks = magnitudes.amax(1)
        # 0 · peak is NaN for a peak that is NaN or infinite, so that a broken row does not look sound.
        ratios = torch.where(medians != 0, peaks / medians, 0.0 * peaks)
        return {
            "kurtosis": squares.square().mean() / (variance.square() + EPSILON),
            "kurtosis_neurons": energies.square().mean() / energies.mean().square(),
            "peaks": ratios.sum(),
            "peaked": (medians != 0).float().sum(),
            **self._outliers(squares, variance),
        }

    def _outliers(self, squares: Float[Tensor, "position width"], variance: Float[Tensor, ""]) -> Mapping[str, Tensor]:
        least = min(self.sigmas)
        # Outliers by a larger sigma are among those by the least one: the whole row is searched once.
        index = where((squares > least**2 * variance).flatten())
        tokens, dimensions, candidates = index // squares.shape[1], index % squares.shape[1], squares.flatten()[index]
        counts, in_token, in_dimension = [], [], []
        for sigma in self.sigmas:
            outlying = candidates > sigma**2 * variance
            counts.append(outlying.sum())
            # minlength=1, so that a row without outliers has the maximum 0 instead of an error.
            in_token.append(torch.bincount(tokens[outlying], minlength=1).max())
            in_dimension.append(torch.bincount(dimensions[outlying], minlength=1).max())
        return {
            "count": torch.stack(counts).float().where(variance.isfinite(), torch.nan),
            "in_token": torch.stack(in_token).float(),
            "in_dimension": torch.stack(in_dimension).float(),
        }
