"""What a quantizer's range must hold at one site, with certain tokens and without them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

BINS_PER_OCTAVE = 64  # a quantile is read within 1.1 %
LOWEST, HIGHEST = -40, 24  # powers of two between which sizes are told apart
QUANTILE = 0.999


@dataclass
class SiteNumbers:
    """Sizes |x| at one site: of each token the largest, of all entries a histogram, of channels the largest.

    `real` and `spared` (row, position) are those of the inputs. Entries of spared tokens count apart.
    """

    real: Bool[Tensor, "row position"]
    spared: Bool[Tensor, "row position"]
    peaks: Float[Tensor, "row position"] = field(init=False)
    channels: Float[Tensor, " channel"] | None = None

    def __post_init__(self) -> None:
        self.peaks = torch.full(self.real.shape, torch.nan)
        self._counts = torch.zeros(2, (HIGHEST - LOWEST) * BINS_PER_OCTAVE, dtype=torch.int64)

    def read(self, x: Float[Tensor, "row position width"], start: int) -> None:
        """Take in the tokens of rows from `start` on."""
        rows, size = slice(start, start + len(x)), x.abs().float().cpu()
        own = self.peaks[rows]
        own.copy_(torch.fmax(own, size.amax(-1)))
        real, spared = self.real[rows], self.spared[rows]
        for index, mask in enumerate((real & ~spared, real & spared)):
            self._counts[index] += _histogram(size[mask])
        others = size[real & ~spared]
        if len(others):
            largest = others.amax(0)
            self.channels = largest if self.channels is None else torch.maximum(self.channels, largest)

    def largest(self, without: bool) -> float:
        """The largest entry, of all real tokens or of those that are not spared."""
        return float(self.peaks[self._mask(without)].max())

    def over_median(self, without: bool) -> float:
        """The largest token in medians of all tokens that are not spared."""
        median = self.peaks[self._mask(True)].median()
        return self.largest(without) / max(float(median), 1e-30)

    def over_quantile(self, without: bool) -> float:
        """The largest entry over the 99.9th percentile of all entries."""
        counts = self._counts[0] if without else self._counts.sum(0)
        edge = int((counts.cumsum(0) >= QUANTILE * counts.sum()).int().argmax())
        middle = LOWEST + (edge + 0.5) / BINS_PER_OCTAVE
        return self.largest(without) / 2**middle

    def channel_ratio(self) -> float:
        """The largest channel in medians of the channels, over tokens that are not spared."""
        if self.channels is None:
            return float("nan")
        return float(self.channels.max() / self.channels.median().clamp(min=1e-30))

    def set_by(self) -> tuple[int, int]:
        """Row and column of the token that sets the range."""
        size = self.peaks.masked_fill(~self.real, -1).nan_to_num(-1)
        return divmod(int(size.argmax()), size.shape[1])

    def _mask(self, without: bool) -> Tensor:
        return self.real & ~self.spared if without else self.real


def bits_lost(with_all: float, without: float) -> float:
    """log₂ of the factor by which a range is wider for some tokens: so many bits do nothing for the others."""
    return float(np.log2(max(with_all, 1e-30) / max(without, 1e-30)))


def _histogram(size: Tensor) -> Tensor:
    place = ((size.clamp(min=2.0**LOWEST).log2() - LOWEST) * BINS_PER_OCTAVE).long()
    bins = (HIGHEST - LOWEST) * BINS_PER_OCTAVE
    return torch.bincount(place.clamp(0, bins - 1).flatten(), minlength=bins)
