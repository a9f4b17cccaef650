"""What a study found: every choice beside nothing spared, the first tokens and random ones, with paired intervals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Float

from sinkscope.errors import InputError
from sinkscope.quantization.studies.stored import Arms
from sinkscope.metrics import Interval, nanmean, quantiles, resampled_means
from sinkscope.quantization.studies.arms import FULL, NOTHING, Arm, first_of
from sinkscope.quantization.studies.figure import cost_figure
from sinkscope.quantization.studies.scoring import Predicted

if TYPE_CHECKING:
    import plotly.graph_objects as go

By = Literal["loss", "kl"]
LEVEL, RESAMPLES = 0.95, 2000
NOTHING_TO_RECOVER = "nothing to recover"
UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))
UNITS = {"loss": "nats", "kl": "nats", "spared": "tokens a row", "held": "bytes a row"}


@dataclass(frozen=True, eq=False)
class Study(Arms):
    """Arms on the same rows; the full model and nothing spared are always among them.

    `data`: dims arm, row. `loss` (absent where the model predicts no next token) and `kl` = KL(full ‖ arm), means over
    a row's scored tokens; `spared`, tokens spared in a row, or read in a prefix; `held` (arm), bytes that the arm's
    cache holds for a row, NaN where there is none; `scored` (row), how many predictions. Coordinates: `role` (full,
    nothing, spared, first, control) and `choice`, to which a control belongs. All intervals are 95 % bootstrap
    intervals over rows, in which the arms of a row stay together.
    """

    CALLED, MARK = "study of quantization", "role"

    @property
    def choices(self) -> list[str]:
        """The choices that were studied."""
        return [name for name in self.arms if self._role(name) == "spared"]

    @property
    def by(self) -> By:
        """What cost is read in: loss where quantization raises it beyond chance, else KL, which never falls below 0."""
        return "loss" if "loss" in self.data and self.cost(NOTHING, by="loss").low > 0 else "kl"

    @property
    def recoverable(self) -> bool:
        """Whether quantization costs anything that can be told from 0: loss, or KL where there is no loss."""
        return self.cost(NOTHING, by="loss" if "loss" in self.data else "kl").low > 0

    def cost(self, arm: str, against: str = FULL, by: By | None = None) -> Interval:
        """By how many nats a token `arm` is worse than `against`, on the same rows."""
        return self._interval(lambda mean: mean[arm] - mean[against], by or self.by)

    def recovered(self, arm: str, by: By | None = None) -> Interval:
        """1 − cost(arm) / cost(nothing spared): the share of quantization's cost that sparing gives back.

        An interval of NaN where that cost cannot be told from 0.
        """
        by = by or self.by
        if self.cost(NOTHING, by=by).low <= 0:
            return UNKNOWN
        return self._interval(lambda mean: 1 - (mean[arm] - mean[FULL]) / (mean[NOTHING] - mean[FULL]), by)

    def given_back(self, arm: str) -> str:
        """What is printed of `recovered`: 83 % (79 to 86), or that there is nothing to recover (`recoverable`).

        Empty for the full model. A model can predict its texts no worse, and otherwise all the same: that share of KL
        is `recovered(arm, by="kl")`.
        """
        if arm == FULL:
            return ""
        return _percent(self.recovered(arm)) if self.recoverable else NOTHING_TO_RECOVER

    def beats(self, arm: str, other: str, by: By | None = None) -> Interval:
        """By how many nats a token `arm` is better than `other`, on the same rows."""
        return self.cost(other, arm, by)

    def controls(self, choice: str) -> list[str]:
        """The random controls of a choice."""
        return [name for name in self.arms if self._role(name) == "control" and self._choice(name) == choice]

    def first(self, choice: str) -> str | None:
        """The arm of the first tokens of a choice's budget; None where the scheme can spare no token of a text."""
        name = first_of(float(self.data["spared"].sel(arm=choice).mean()))
        return name if name in self.arms else None

    def helps(self, choice: str) -> bool:
        """Whether a choice beats nothing spared and the mean of its controls, each beyond chance."""
        controls = self.controls(choice)
        beside = self._interval(lambda mean: np.mean([mean[name] for name in controls], 0) - mean[choice], self.by)
        return self.beats(choice, NOTHING).low > 0 and beside.low > 0

    @property
    def verdict(self) -> str:
        """The finding in words, for each choice: what it recovers, and what the others do at the same budget."""
        kept = [] if "columns_kept" not in self.record else [self._kept()]
        if not self.recoverable:
            cost = self.cost(NOTHING, by="loss" if "loss" in self.data else "kl")
            told = f"Quantization costs {_said(cost, 4)} nats a token, which cannot be told from 0"
            beside = f" (KL to the full model: {self.cost(NOTHING, by='kl').value:.2g})" if "loss" in self.data else ""
            return " ".join([f"{told}{beside}: there is {NOTHING_TO_RECOVER}.", *kept])
        unit = "nats a token" if self.by == "loss" else "nats a token (KL to the full model)"
        said = [f"Quantization costs {_said(self.cost(NOTHING), 4)} {unit}.", *kept]
        return " ".join(said + ([self._sentence(choice) for choice in self.choices] or ["No tokens were spared."]))

    def plot(self) -> go.Figure:
        """The cost of every arm with its interval."""
        return cost_figure(self.table(), "loss_cost" if self.by == "loss" else "kl")

    def to_json(self) -> dict[str, Any]:
        """The table, the verdict and the record, JSON-able."""
        found = {choice: {"helps": self.recoverable and self.helps(choice)} for choice in self.choices}
        return {"arms": self._rows(), "by": self.by, "choices": found, "verdict": self.verdict, **self.record}

    def _interval(self, statistic: Callable[[_ByName], np.ndarray], by: By) -> Interval:
        """Of a statistic of the arms' means, by resampling rows."""
        if by not in self.data:
            raise InputError("the model predicts no next token, so there is no loss: take by='kl'")
        means, drawn = self._means[by]
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = quantiles(np.asarray(statistic(_ByName(self.arms, drawn))), LEVEL)
            value = float(statistic(_ByName(self.arms, means[None]))[0])
        return Interval(value, float(low), float(high))

    @cached_property
    def _means(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The arms' means over rows, and as they are in resampled rows, (arm,) and (resample, arm)."""
        values = {by: self.data[by].transpose("row", "arm").values for by in ("loss", "kl") if by in self.data}
        return {by: (nanmean(one, 0), resampled_means(one, RESAMPLES, 0)) for by, one in values.items()}

    def _role(self, arm: str) -> str:
        return str(self.data["role"].sel(arm=arm).values)

    def _choice(self, arm: str) -> str:
        return str(self.data["choice"].sel(arm=arm).values)

    def _sentence(self, choice: str) -> str:
        first, controls = self.first(choice), self.controls(choice)
        others = [self.recovered(name).value for name in controls]
        told = ""
        if first is not None:
            same = np.array_equal(self._of(choice), self._of(first))
            told = "are the same tokens" if same else f"give back {_percent(self.recovered(first))}"
            told = f"the {first} {told}, "
        helps = "" if self.helps(choice) else ": no more than chance"
        return (
            f"Sparing '{choice}' ({self._tokens(choice)}) gives back {_percent(self.recovered(choice))} of it{helps}; "
            f"{told}{_of_random(others)}."
        )

    def _kept(self) -> str:
        record = self.record
        return (
            f"It leaves {100 * record['columns_kept']:.0f} % of the columns in full precision, of "
            f"{record['columns_kept_in']} {100 * record['columns_kept_most']:.0f} %."
        )

    def _of(self, arm: str) -> np.ndarray:
        return np.concatenate([self.data[name].sel(arm=arm).values for name in ("kl", "spared")])

    def _tokens(self, arm: str) -> str:
        mean = float(self.data["spared"].sel(arm=arm).mean())
        return f"{mean:g} token{'' if mean == 1 else 's'} a row" if mean == int(mean) else f"{mean:.1f} tokens a row"

    def _row(self, arm: str) -> dict[str, Any]:
        one = self.data.sel(arm=arm)
        row: dict[str, Any] = {"arm": arm, "role": self._role(arm), "choice": self._choice(arm)}
        row["spared"] = float(one["spared"].mean())
        for by in ("loss", "kl"):
            if by in self.data:
                row |= _columns(f"{by}_cost" if by == "loss" else "kl", self.cost(arm, by=by))
        row |= _columns("recovered", self.recovered(arm) if arm != FULL and self.recoverable else UNKNOWN)
        row["given_back"] = self.given_back(arm)
        row["held_bytes"] = float(one["held"])
        return row


class _ByName:
    """Means of arms by their names."""

    def __init__(self, names: Sequence[str], means: Float[np.ndarray, "resample arm"]) -> None:
        self._columns = dict(zip(names, means.T, strict=True))

    def __getitem__(self, arm: str) -> Float[np.ndarray, " resample"]:
        if arm not in self._columns:
            raise InputError(f"no arm '{arm}': there are {', '.join(self._columns)}")
        return self._columns[arm]


def study_of(arms: Sequence[Arm], predicted: Mapping[str, Predicted], record: Mapping[str, Any]) -> Study:
    """The study of these predictions."""
    found = [predicted[arm.name] for arm in arms]
    kl = np.stack([_row_means(one.kl.numpy()) for one in found])
    arrays: dict[str, Any] = {"kl": (("arm", "row"), kl)}
    if all(one.nll is not None for one in found):
        arrays["loss"] = ("arm", "row"), np.stack([_row_means(one.nll.numpy()) for one in found])  # type: ignore[union-attr]
    arrays["spared"] = ("arm", "row"), np.stack([arm.budget(kl.shape[1]).numpy().astype(float) for arm in arms])
    arrays["held"] = ("arm",), np.array([np.nan if one.held is None else one.held for one in found])
    arrays["scored"] = ("row",), np.isfinite(found[0].kl.numpy()).sum(1)
    if not arrays["scored"][1].any():
        raise InputError("no prediction is left to score: every one is at a token that some arm spares")
    data = xr.Dataset(
        {name: (dims, values, {"units": UNITS.get(name, "")}) for name, (dims, values) in arrays.items()},
        coords={
            "arm": [arm.name for arm in arms],
            "role": ("arm", [arm.role for arm in arms]),
            "choice": ("arm", [arm.choice for arm in arms]),
        },
    )
    return Study(data.assign_attrs(record=json.dumps(dict(record))))


def _row_means(values: Float[np.ndarray, "row place"]) -> Float[np.ndarray, " row"]:
    return nanmean(values, 1)


def _columns(name: str, found: Interval) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _of_random(shares: Sequence[float]) -> str:
    low, high = (round(100 * share) for share in (min(shares), max(shares)))
    if len(shares) == 1:
        return f"a random choice of the same budget {low} %"
    return f"{len(shares)} random choices of the same budget {low} to {high} %"


def _said(found: Interval, digits: int) -> str:
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _percent(found: Interval) -> str:
    return f"{100 * found.value:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"
