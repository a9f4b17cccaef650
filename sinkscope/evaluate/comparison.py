"""Caches beside each other on the same texts, the full cache always among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.errors import InputError
from sinkscope.evaluate import figures
from sinkscope.evaluate.arms import FULL
from sinkscope.evaluate.stored import Arms
from sinkscope.metrics import Interval, bootstrap

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False)
class CacheComparison(Arms):
    """What every arm did on the same texts.

    `data`: dims arm, window (texts), row and question (needles). `nll`, `kl` and `same` (arm, window) are means over
    the scored tokens of a text; `agreed` (arm, window); `recall` (arm, row, question) and `recall_seen` (arm, row);
    `held`, `held_at_end`, `prefill_seconds`, `step_seconds` (arm). Coordinates `series` and `control`. What was not
    asked for is absent. The first arm is the full cache.
    """

    CALLED, MARK = "comparison of caches", "series"

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

    def plot(self) -> dict[str, go.Figure]:
        """Loss, recall and time against what is kept, by title."""
        return figures.all_figures(self.table().assign(series=self.data["series"].values))

    def to_json(self) -> dict[str, Any]:
        """The table and the record, JSON-able."""
        return {"arms": self._rows(), **self.record}

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
