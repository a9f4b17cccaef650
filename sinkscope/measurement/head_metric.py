"""What a metric per head is: one value for each (layer, head), with what a reader is told about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

from sinkscope.measurement.selection import HeadView

Drawing = Literal["share", "amount", "ratio", "signed"]
"""How a map is colored: a share of attention with its threshold; an amount; a ratio around 1; a signed number."""

Value = Callable[[HeadView], np.ndarray]


@dataclass(frozen=True)
class HeadMetric:
    """A value per head.

    `name`: its column in `Measurement.heads`. `title`, `about`: what a reader sees on the page. `formula`: of one
    sample, with s the position that is asked about; the mean over samples follows, unless the formula says otherwise.
    `needs`: variables of the measurement. `value` makes the array (layer, head). `draw`: how the page colors its map,
    None for what is no number. `positioned`: whether it moves with the position that a reader chooses on the page.
    `only_at`: the positions that it was observed at, where that is not every measured one; None where it is, and for
    what is about no position. Asked about another, it is absent.
    """

    name: str
    title: str
    about: str
    formula: str
    source: str
    needs: tuple[str, ...]
    value: Value
    unit: str = ""
    draw: Drawing | None = "amount"
    positioned: bool = False
    only_at: Callable[[xr.Dataset], Sequence[int]] | None = None

    def applies(self, data: xr.Dataset, position: int) -> bool:
        """Whether the measurement holds what this needs, and holds it of this position."""
        if not all(name in data and bool(data[name].notnull().any()) for name in self.needs):
            return False
        return self.only_at is None or position in self.only_at(data)

    def at(self, data: xr.Dataset, epsilon: float, positions: Sequence[int]) -> np.ndarray:
        """The array (place, layer, head): at each position; at the first alone for a metric that does not move."""
        chosen = positions if self.positioned else positions[:1]
        return np.stack([self.value(HeadView(data, epsilon, position)) for position in chosen])

    def heading(self, position: int | None = None) -> str:
        """The title with its unit, and with the position where it is about one."""
        where = "" if position is None or not self.positioned else f", position {position}"
        return f"{self.title}{where}{f' ({self.unit})' if self.unit else ''}"
