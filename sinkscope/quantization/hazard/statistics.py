"""What the range at one site must cover, with and without certain tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BINS_PER_OCTAVE = 64  # quantiles are accurate to 1.1 %
LOWEST, HIGHEST = -40, 24  # powers of two between which the histogram has bins
QUANTILE = 0.999
CHANNEL = 10.0  # medians of the channels from which a channel stands out


@dataclass
class SiteNumbers:
    """Magnitudes |x| at one site: the largest of each token, a histogram of all entries, the largest of each channel.

    `real` and `protected` (row, position) are those of the inputs; real, unprotected tokens are *left*.
    """

    real: Bool[Tensor, "row position"]
    protected: Bool[Tensor, "row position"]
    peaks: Float[Tensor, "row position"] = field(init=False)
    widest: Int[Tensor, "row position"] = field(init=False)
    channels: Float[Tensor, " channel"] | None = None

    def __post_init__(self) -> None:
        self.peaks = torch.full(self.real.shape, torch.nan)
        self.widest = torch.full(self.real.shape, -1)  # the channel of each token's largest entry
        self._counts = torch.zeros(2, (HIGHEST - LOWEST) * BINS_PER_OCTAVE, dtype=torch.int64)

    @property
    def left(self) -> Bool[Tensor, "row position"]:
        return self.real & ~self.protected

    def read(self, x: Float[Tensor, "row position width"], start: int) -> None:
        """Add the tokens of rows from `start` on."""
        rows, size = slice(start, start + len(x)), x.abs().float().cpu()
        peak, channel = size.max(-1)
        larger = ~(self.peaks[rows] >= peak)  # also True for NaN, where nothing was read yet
        self.peaks[rows] = torch.where(larger, peak, self.peaks[rows])
        self.widest[rows] = torch.where(larger, channel, self.widest[rows])
        for index, mask in enumerate((self.left[rows], (self.real & self.protected)[rows])):
            self._counts[index] += _histogram(size[mask])
        others = size[self.left[rows]]
        if len(others):
            largest = others.amax(0)
            self.channels = largest if self.channels is None else torch.maximum(self.channels, largest)

    def largest(self, among: Bool[Tensor, "row position"]) -> float:
        """The largest entry of these tokens; 0 if there is none."""
        return float(self.peaks[among].max()) if bool(among.any()) else 0.0

    def over_median(self, among: Bool[Tensor, "row position"]) -> float:
        """The largest of these tokens in medians of the tokens that are left."""
        return self.largest(among) / max(float(self.peaks[self.left].median()), 1e-30)

    def over_quantile(self, left: bool) -> float:
        """The largest entry over the 99.9th percentile of all entries, of real tokens or of those that are left."""
        counts = self._counts[0] if left else self._counts.sum(0)
        edge = int((counts.cumsum(0) >= QUANTILE * counts.sum()).int().argmax())
        middle = LOWEST + (edge + 0.5) / BINS_PER_OCTAVE
        return self.largest(self.left if left else self.real) / 2**middle

    def channel(self) -> tuple[float, float]:
        """The largest channel in medians of the channels, and the share of tokens in which it stands out.

        Both over the tokens that are left. It stands out in a token if it is the token's largest channel and at least
        10 medians of the channels. If it does so in a few tokens only, the outliers are these tokens rather than the
        channel.
        """
        if self.channels is None:
            return float("nan"), float("nan")
        median = self.channels.median().clamp(min=1e-30)
        top = int(self.channels.argmax())
        out = (self.widest == top) & (self.peaks >= CHANNEL * median) & self.left
        return float(self.channels[top] / median), float(out.sum() / self.left.sum())

    def set_by(self, among: Bool[Tensor, "row position"]) -> tuple[int, int]:
        """Row and column of the token among these that sets the range."""
        size = self.peaks.masked_fill(~among, -1).nan_to_num(-1)
        return divmod(int(size.argmax()), size.shape[1])


def bits_lost(with_all: float, without: float) -> float:
    """log₂ of the factor by which some tokens widen a range: the bits that the others lose."""
    return float(np.log2(max(with_all, 1e-30) / max(without, 1e-30)))


def _histogram(size: Tensor) -> Tensor:
    index = ((size.clamp(min=2.0**LOWEST).log2() - LOWEST) * BINS_PER_OCTAVE).long()
    bins = (HIGHEST - LOWEST) * BINS_PER_OCTAVE
    return torch.bincount(index.clamp(0, bins - 1).flatten(), minlength=bins)
