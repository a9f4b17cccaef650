"""Run folders as the report reads them: the metric log and the record, without the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.training import LOG, read_record, read_rows

Row = Mapping[str, Any]


@dataclass(frozen=True)
class StoredRun:
    """A training run as stored: `rows` are the log's lines in order, each with at least `step`."""

    label: str
    rows: tuple[Row, ...]
    record: Mapping[str, Any] = field(default_factory=dict)

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, at the steps where it was logged and is finite."""
        points = [(int(row["step"]), float(row[metric])) for row in self.rows if _finite(row.get(metric))]
        return [step for step, _ in points], [value for _, value in points]

    def last(self, metric: str) -> float | None:
        """The newest finite value of a metric; None without one."""
        return next((float(row[metric]) for row in reversed(self.rows) if _finite(row.get(metric))), None)

    @property
    def step(self) -> int:
        """The newest logged step."""
        return max((int(row["step"]) for row in self.rows), default=0)


@dataclass(frozen=True)
class Seeds:
    """Runs of one recipe that differ only in their seed."""

    label: str
    runs: Sequence[StoredRun]

    @property
    def mean(self) -> StoredRun:
        """The mean of each metric over the runs, at the steps at which all of them logged it."""
        rows: dict[int, dict[str, Any]] = {}
        for metric in dict.fromkeys(name for run in self.runs for row in run.rows for name in row if name != "step"):
            curves = [dict(zip(*run.curve(metric), strict=True)) for run in self.runs]
            for step in sorted(set.intersection(*(set(curve) for curve in curves))):
                values = [curve[step] for curve in curves]
                rows.setdefault(step, {"step": step})[metric] = sum(values) / len(values)
        return StoredRun(self.label, tuple(rows[step] for step in sorted(rows)))

    def ends(self, metric: str) -> tuple[float, float] | None:
        """The smallest and the largest of the runs' newest values; None if a run has none."""
        values = [value for run in self.runs if (value := run.last(metric)) is not None]
        return (min(values), max(values)) if len(values) == len(self.runs) else None


def read_run(folder: str | Path, label: str | None = None) -> StoredRun:
    """Read a run folder, finished or still running; the label defaults to the folder's name.

    Raises `InputError` if the folder has no log, or if one of its files is corrupt.
    """
    path = Path(folder)
    if not (path / LOG).is_file():
        raise InputError(f"{path} is not a run folder: it holds no {LOG}")
    return StoredRun(label or path.name, tuple(read_rows(path / LOG)), read_record(path) or {})


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
