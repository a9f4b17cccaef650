"""What an experiment knows of a run: final metrics and curves, small enough to be kept in results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sinkscope.errors import InputError

CURVES = ("validation_loss", "sink/position_0")


@dataclass(frozen=True)
class Observed:
    """A settled run. `metrics`: numbers by name; a metric that a run does not have is NaN, as are all of one that
    diverged. `curves`: values over `steps`.

    Metrics: `loss` (validation, nats), `train_loss`, `sink_0` … `sink_7` (sink rate of a position, percent, ε = 0.3, on
    the first 64 tokens of validation windows), `strongest` and `strongest_position`, `slot` (Sink_*), `norm_ratio`
    (‖h_0‖ over the others, largest over depth), `value_ratio` (‖v_0‖ over the others, smallest over layers). Position
    0 also under other readings: `sink_0/epsilon=0.2` (0.3, 0.4, 0.5), `sink_0/tokens=16` (32, 64, the context),
    `sink_0/random` (uniform tokens), `sink_0/repeated` (one token), `sink_0/without_first` and `loss/without_first`
    (validation windows from their second token on: without the BOS, where training fixed one).
    """

    run: str
    status: str
    seed: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""

    def __getitem__(self, metric: str) -> float:
        return self.metrics.get(metric, math.nan)

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data; None for what is not a number."""
        plain = asdict(self)
        plain["metrics"] = {name: _or_none(value) for name, value in self.metrics.items()}
        plain["curves"] = {name: [_or_none(value) for value in values] for name, values in self.curves.items()}
        plain["steps"] = list(self.steps)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Observed:
        """Back from plain data. Raises `InputError` for data of another form."""
        try:
            values = dict(data)
            values["metrics"] = {name: _or_nan(value) for name, value in values["metrics"].items()}
            values["curves"] = {name: tuple(map(_or_nan, curve)) for name, curve in values["curves"].items()}
            return cls(**values | {"steps": tuple(values["steps"])})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"this is no record of an observed run: {type(error).__name__}: {error}") from error


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
