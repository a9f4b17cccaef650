"""Caches beside each other on the same texts, the full cache always among them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.evaluate import figures
from sinkscope.evaluate.arms import FULL
from sinkscope.metrics import Interval, bootstrap
from sinkscope.netcdf import read_netcdf, write_netcdf

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False)
class Comparison:
    """What every arm did on the same texts.

    `data`: dims arm, window (texts), row and question (needles). `nll`, `kl` and `same` (arm, window) are means over
    the scored tokens of a text; `agreed` (arm, window); `recall` (arm, row, question) and `recall_seen` (arm, row);
    `held`, `held_at_end`, `prefill_seconds`, `step_seconds` (arm). Coordinates `series` and `control`. What was not
    asked for is absent. The first arm is the full cache.
    """

    data: xr.Dataset

    @property
    def record(self) -> dict[str, Any]:
        """Where the numbers come from."""
        return dict(json.loads(self.data.attrs["record"]))

    @property
    def arms(self) -> list[str]:
        return [str(name) for name in self.data["arm"].values]

    def kept(self, arm: str) -> float:
        """Held bytes behind the context, as a share of those of the full cache."""
        return float(self.data["held"].sel(arm=arm) / self.data["held"].sel(arm=FULL))

    def loss(self, arm: str, against: str = FULL, *, level: float = 0.95, resamples: int = 1000) -> Interval:
        """Nats by which `arm` predicts worse than `against`: the mean over texts of what differs on the same text, with
        its bootstrap interval over texts."""
        self._check(arm, against)
        nll = self.data["nll"]
        return _interval((nll.sel(arm=arm) - nll.sel(arm=against)).values, level, resamples)

    def recall(self, arm: str, *, level: float = 0.95, resamples: int = 1000) -> Interval:
        """Share of right answers to questions that were not seen before, with its interval over texts.

        Raises `InputError` where no needles were asked for.
        """
        self._check(arm)
        if "recall" not in self.data:
            raise InputError("no needles were asked for: give `needles`")
        return _interval(self.data["recall"].sel(arm=arm).mean("question").values, level, resamples)

    def table(self) -> pd.DataFrame:
        """A row per arm, in their order."""
        return pd.DataFrame([self._row(arm) for arm in self.arms])

    def plot(self) -> dict[str, go.Figure]:
        """Loss, recall and time against what is kept, by title."""
        return figures.all_figures(self.table().assign(series=self.data["series"].values))

    def to_json(self) -> dict[str, Any]:
        """The table and the record, JSON-able."""
        rows = json.loads(self.table().to_json(orient="records", double_precision=10))
        return {"arms": rows, **self.record}

    def save(self, path: str | Path) -> None:
        """Write everything to one netCDF file, whole or not at all."""
        write_netcdf(self.data, path)

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """Read what `save` wrote. Raises `InputError` for a file that is none."""
        try:
            data = read_netcdf(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        if "record" not in data.attrs or "series" not in data.coords:
            raise InputError(f"{path} holds no comparison of caches")
        return cls(data)

    def _check(self, *arms: str) -> None:
        for arm in arms:
            if arm not in self.arms:
                raise InputError(f"no arm '{arm}': there are {', '.join(self.arms)}")

    def _row(self, arm: str) -> dict[str, Any]:
        one = self.data.sel(arm=arm)
        row: dict[str, Any] = {
            "arm": arm,
            "control": bool(one["control"]),
            "kept": self.kept(arm),
            "held_mib": float(one["held"]) / 2**20,
        }
        loss = self.loss(arm)
        row |= {"perplexity": float(np.exp(one["nll"].mean())), "loss": loss.value}
        row |= {"loss_low": loss.low, "loss_high": loss.high}
        row |= {"kl": float(one["kl"].mean()), "same": float(one["same"].mean())}
        if "agreed" in one:
            row["agreed"] = float(one["agreed"].mean())
        if "recall" in one:
            found = self.recall(arm)
            row |= {"recall": found.value, "recall_low": found.low, "recall_high": found.high}
            row["recall_seen"] = float(one["recall_seen"].mean())
        if "step_seconds" in one:
            row["step_ms"] = 1e3 * float(one["step_seconds"])
            row["step_ratio"] = float(one["step_seconds"] / self.data["step_seconds"].sel(arm=FULL))
            row["prefill_ms"] = 1e3 * float(one["prefill_seconds"])
        return row


def _interval(values: np.ndarray, level: float, resamples: int) -> Interval:
    low, high = bootstrap(np.asarray(values, dtype=np.float64), level, resamples)
    return Interval(float(np.mean(values)), float(low), float(high))
