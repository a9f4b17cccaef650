"""What a trial found: arms on the same texts, compared text by text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from sinkscope.errors import InputError, unknown
from sinkscope.files.netcdf import read_netcdf, write_netcdf
from sinkscope.statistics import Interval, mean_interval, nanmean, note, ratio_interval, share_interval
from sinkscope.trials.arm import REFERENCE
from sinkscope.trials.words import TOLERANCE, Grade, grade, nats, percent

if TYPE_CHECKING:
    import plotly.graph_objects as go

Score = Literal["kl", "nats"]
SENTENCES: dict[str, Callable[[Trial], list[str]]] = {}
"""What a kind of trial says beyond the general verdict, by the record's `kind`."""

UNITS = {
    "kl": "nats a token",
    "nats": "nats a token",
    "agreement": "share of tokens",
    "recall": "share of answers",
    "recall_seen": "share of answers",
    "scored": "predictions",
    "bytes": "bytes a text",
    "bytes_16": "bytes a text, of a model in 16 bits",
    "seconds": "s a text",
    "rate_at_sink": "share of heads",
    "rate_at_test": "share of heads",
    "prefill_seconds": "s",
    "step_seconds": "s a token",
}
SHARES = ("agreement", "recall", "recall_seen", "rate_at_sink", "rate_at_test")
NAN = Interval(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True, eq=False)
class Trial:
    """Arms on the same texts; the first one is the unchanged model.

    `data` has the dimensions arm and text: `kl` = KL(against ‖ arm), `nats` = −log p of the next token, `agreement`
    (arm, text), each the mean over a text's scored places; `scored` (text); `bytes`, `seconds` (arm); `recall` (arm,
    row, question) where questions were asked. Coordinates over arms: `role` (reference, baseline, arm, control), `of`
    (the arm whose control it is), `draw`, `series`, `against`. The attribute `record` says how it was made. The unit of
    every interval is a text, of equal weight whatever its length: 95 %, Student's t.
    """

    data: xr.Dataset

    @property
    def record(self) -> dict[str, Any]:
        """Where the numbers come from; each reader gets a copy."""
        return dict(json.loads(self.data.attrs["record"]))

    @cached_property
    def _places(self) -> dict[str, int]:
        """Where each arm is along the axis: looking it up by label takes a millisecond, a thousand times a table."""
        return {str(name): place for place, name in enumerate(self.data["arm"].values)}

    @property
    def arms(self) -> list[str]:
        """All of them, in their order."""
        return list(self._places)

    def named(self, role: str) -> list[str]:
        """The arms of a role: reference, baseline, arm, control."""
        return [name for name in self.arms if self._of(name, "role") == role]

    def controls(self, arm: str) -> list[str]:
        """The controls of an arm."""
        self._check(arm)
        return [name for name in self.named("control") if self._of(name, "of") == arm]

    @property
    def baseline(self) -> str | None:
        """What the arms are to improve on; None where there is nothing but the unchanged model."""
        return next(iter(self.named("baseline")), None)

    @property
    def tolerance(self) -> float:
        return float(self.record.get("tolerance", TOLERANCE))

    @property
    def leads(self) -> Score:
        """What arms are compared with their controls by: KL, or nats where they are meant to predict better."""
        return "nats" if self.record.get("leads") == "nats" else "kl"

    @property
    def texts(self) -> int:
        """How many texts were scored."""
        return int(np.isfinite(self.data[self._main].values).any(0).sum())

    def values(self, arm: str, score: str = "kl") -> Float[np.ndarray, " text"]:
        """One arm's scores, or with arm="controls of X" the mean over X's controls, text by text."""
        if arm.startswith("controls of "):
            names = self.controls(arm.removeprefix("controls of "))
            if not names:
                raise InputError(f"'{arm.removeprefix('controls of ')}' has no controls")
            return nanmean(np.stack([self.values(name, score) for name in names]), 0)
        self._check(arm)
        if score not in self.data or not np.isfinite(self.data[score].values).any():
            raise InputError(f"this trial has no {score}: it has {', '.join(self._scores)}")
        values = np.asarray(self.data[score].values[self._places[arm]], dtype=np.float64)
        return values.mean(tuple(range(1, values.ndim))) if values.ndim > 1 else values

    def mean(self, arm: str, score: str = "kl") -> Interval:
        """The mean of an arm's scores over texts."""
        values = self.values(arm, score)
        return share_interval(values) if score in SHARES else mean_interval(values)

    def difference(self, a: str, b: str = "controls", score: str = "kl") -> Interval:
        """By how much `a` scores higher than `b` on the same texts; b="controls": than the mean of its controls."""
        other = f"controls of {a}" if b == "controls" else b
        return mean_interval(self.values(a, score) - self.values(other, score))

    def cost(self, arm: str, score: Score = "kl") -> Interval:
        """What an arm costs against the unchanged model: KL as it is, nats as the difference on the same texts."""
        if score == "kl":
            return self.mean(arm, "kl")
        return self.difference(arm, self._of(arm, "against") or REFERENCE, score)

    def recovered(self, arm: str, of: str | None = None) -> Interval:
        """1 − cost(arm) / cost(baseline): the share of the baseline's cost that the arm gives back.

        NaN where the baseline's cost cannot be told from 0, and where the baseline breaks the model.
        """
        base = of or self.baseline
        if base is None:
            raise InputError("there is no baseline whose cost could be given back: name an arm with of=...")
        if not self.cost(base).low > 0 or self.grade(base).word == "breaks":
            return NAN
        share = ratio_interval(self.values(arm), self.values(base))
        return Interval(1 - share.value, 1 - share.high, 1 - share.low)

    def grade(self, arm: str) -> Grade:
        """What an arm costs, in a word: breaks, free, small, costs, cannot tell (`trials.words`)."""
        if not self._has("kl"):
            return Grade("cannot tell", "there is no KL where tokens are written")
        lost = self.cost(arm, "nats") if self._has("nats") else None
        return grade(
            self.cost(arm),
            self.mean(arm, "agreement").value if self._has("agreement") else float("nan"),
            lost=lost,
            nats=self.mean(arm, "nats").value if lost is not None else None,
            reference=self.mean(self.arms[0], "nats").value if lost is not None else None,
            vocabulary=self.record.get("vocabulary"),
            texts=self.texts,
            tolerance=self.tolerance,
        )

    def word(self, arm: str) -> str:
        """The word alone."""
        return self.grade(arm).word

    @property
    def verdict(self) -> str:
        """The finding in sentences, from the numbers alone; a file holds no words."""
        kind = SENTENCES.get(str(self.record.get("kind")))
        lines = kind(self) if kind is not None else self.sentences()
        return " ".join([*lines, *self.notes()])

    def sentences(self) -> list[str]:
        """The general verdict: what the baseline costs, then each arm, compared with its controls."""
        base, lines = self.baseline, []
        if base is not None:
            lines.append(f"'{base}' {self.cost_in_words(base)}.")
            if self.word(base) == "breaks":
                return [*lines, "It breaks the model, so nothing is ranked against it."]
            if not self.cost(base).low > 0:
                lines.append("There is nothing to give back.")
        return [*lines, *(self.sentence(arm) for arm in self.named("arm"))]

    def sentence(self, arm: str) -> str:
        """What one arm costs or gives back, and whether that is more than its controls do."""
        if not self._has("kl"):
            return self._without_kl(arm)
        base = self.baseline
        share = NAN if base is None or arm == base else self.recovered(arm)
        if np.isfinite(share.value):
            text = f"'{arm}'{self._budget(arm)} gives back {percent(share)} of the KL"
        else:
            text = f"'{arm}'{self._budget(arm)} {self.cost_in_words(arm)}"
        if (equal := self.data.coords.get("equal_to")) is not None and str(equal.sel(arm=arm).values):
            text += f" (the same as '{equal.sel(arm=arm).values!s}')"
        controls = self.controls(arm)
        if not controls:
            return f"{text}."
        gain = -self.difference(arm, score=self.leads)
        what = f"{len(controls)} random controls" if len(controls) > 1 else "its random control"
        if gain.low > 0:
            return f"{text}; it beats {what} of the same budget by {nats(gain)}."
        if gain.high < 0:
            return f"{text}; {what} of the same budget are better, by {nats(-gain)}."
        return f"{text}; it cannot be told from {what} of the same budget (difference {nats(gain)})."

    def cost_in_words(self, arm: str) -> str:
        """KL, loss and agreement of an arm, with its grade; and where KL and loss disagree."""
        kl = self.cost(arm)
        parts = [f"KL {nats(kl)}"]
        if self._has("nats"):
            lost = self.cost(arm, "nats")
            parts.append(f"loss {nats(lost, signed=True)}")
            if kl.low > self.tolerance and lost.high < 0:
                parts.append("predictions change, for the better")
            elif kl.low > self.tolerance and lost.low <= 0:
                parts.append("predictions change and the loss does not")
        if self._has("agreement"):
            parts.append(f"{100 * self.mean(arm, 'agreement').value:.1f} % of tokens agree")
        return f"{self.grade(arm)}: {', '.join(parts)}"

    def notes(self) -> list[str]:
        """What limits the numbers: few texts, scored on what was calibrated on, changes that were made to fit."""
        lines = []
        if few := note(self.texts):
            lines.append(f"{few[0].upper()}{few[1:]}.")
        calibrated = self.record.get("calibrated_on")
        if calibrated and calibrated.get("in_sample"):
            lines.append("Scored on the texts that it was calibrated on, so these figures flatter it.")
        lines += self.record.get("notes", [])
        return lines

    def table(self, *, full: bool = False) -> pd.DataFrame:
        """One row per arm: role, KL and loss with intervals, agreement, bytes, recovered share, controls, word.

        An arm's controls are its columns `controls` (their mean KL) and `beats_by`; `full` lists each of them too.
        """
        names = [name for name in self.arms if full or self._of(name, "role") != "control"]
        return pd.DataFrame([self._row(name) for name in names])

    def to_json(self) -> dict[str, Any]:
        """The verdict, the full table and the record, JSON-able."""
        rows = json.loads(self.table(full=True).to_json(orient="records", double_precision=10))
        record = self.record
        return {**record, "verdict": self.verdict, "arms": rows, "facts": record.get("arms", {}), "texts": self.texts}

    def plot(self) -> go.Figure:
        """The KL of every arm with its interval; the line is the baseline."""
        from sinkscope.trials.figure import cost_figure  # plotly takes its time to load

        base = None if self.baseline is None or not self._has("kl") else self.cost(self.baseline).value
        return cost_figure(self.table(full=True), base, by="lost" if self.leads == "nats" else "kl")

    def save(self, path: str | Path) -> None:
        """Write everything to one netCDF file, whole or not at all."""
        write_netcdf(self.data, path)

    def _without_kl(self, arm: str) -> str:
        if not self._has("agreement"):
            return f"'{arm}' changes the loss by {nats(self.cost(arm, 'nats'))} nats a token."
        share = percent(self.mean(arm, "agreement"))
        if self.record["reading"]["read"] == "written on":
            return f"'{arm}' writes {share} of the tokens before the first other one."
        return f"'{arm}' finds the same token most likely at {share} of the places."

    @property
    def _main(self) -> str:
        return next(score for score in ("kl", "nats", "agreement") if self._has(score))

    @property
    def _scores(self) -> list[str]:
        return [name for name in ("kl", "nats", *SHARES) if self._has(name)]

    def _has(self, score: str) -> bool:
        return score in self.data and bool(np.isfinite(self.data[score].values).any())

    def _of(self, arm: str, what: str) -> str:
        return str(self.data[what].values[self._places[arm]]) if what in self.data.coords else ""

    def _check(self, arm: str) -> None:
        if arm not in self._places:
            raise unknown("arm", arm, self.arms)

    def _budget(self, arm: str) -> str:
        facts = self.record.get("arms", {}).get(arm, {})
        if "tokens_per_text" in facts:
            count = facts["tokens_per_text"]
            return f" ({count:.3g} token{'' if count == 1 else 's'} a text)"
        return ""

    def _row(self, arm: str) -> dict[str, Any]:
        row: dict[str, Any] = {"arm": arm, "role": self._of(arm, "role"), "of": self._of(arm, "of")}
        if self._has("kl"):
            row |= _columns("kl", self.cost(arm))
        if self._has("nats"):
            row |= {"nats": self.mean(arm, "nats").value, **_columns("lost", self.cost(arm, "nats"))}
        for score in ("agreement", "recall", "recall_seen"):
            if self._has(score):
                row |= _columns(score, self.mean(arm, score))
        if "bytes" in self.data and np.isfinite(held := float(self.data["bytes"].sel(arm=arm))):
            full = float(self.data["bytes"].isel(arm=0))
            row |= {"bytes": held, "bytes_share": held / full if full else float("nan")}
        if (keys := self.record.get("arms", {}).get(arm, {}).get("keys")) is not None:
            row["keys"] = keys
        if "step_seconds" in self.data:
            step = self.data["step_seconds"]
            row |= {
                "step_ms": 1e3 * float(step.sel(arm=arm)),
                "step_ratio": float(step.sel(arm=arm) / step.isel(arm=0)),
            }
        if self.baseline is not None and row["role"] in ("arm", "control") and self._has("kl"):
            row |= _columns("recovered", self.recovered(arm))
        if self._has("kl") and self.controls(arm):
            row["controls"] = float(nanmean(self.values(f"controls of {arm}"), 0))
            row |= _columns("beats_by", -self.difference(arm, score=self.leads))
        if self._has("kl") and row["role"] != "reference":
            row["word"] = self.word(arm)
        return row


def load(path: str | Path) -> Trial:
    """Read what `Trial.save` wrote, and studies and comparisons of caches of before. Raises `InputError` for others."""
    try:
        data = read_netcdf(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if "record" not in data.attrs or "arm" not in data.dims:
        raise InputError(f"{path} holds no trial")
    if "text" in data.dims and "role" in data.coords:
        return Trial(data)
    if "role" in data.coords and "row" in data.dims:
        return Trial(_from_study(data))
    if "control" in data.coords and "window" in data.dims:
        return Trial(_from_comparison(data))
    raise InputError(f"{path} holds no trial")


def _from_study(data: xr.Dataset) -> xr.Dataset:
    """A study of quantization, as it was stored before trials."""
    roles = {"full": "reference", "nothing": "baseline", "spared": "arm", "first": "arm", "control": "control"}
    old = [str(role) for role in data["role"].values]
    of = [str(choice) if role == "control" else "" for role, choice in zip(old, data["choice"].values, strict=True)]
    new = data.drop_vars(["role", "choice", "spared"], errors="ignore")
    new = new.rename({"row": "text", **{a: b for a, b in {"loss": "nats", "held": "bytes"}.items() if a in data}})
    return _completed(new, [roles[role] for role in old], of, "schemes")


def _from_comparison(data: xr.Dataset) -> xr.Dataset:
    """A comparison of caches, as it was stored before trials."""
    names = [str(name) for name in data["arm"].values]
    control = data["control"].values.astype(bool)
    roles = ["reference", *("control" if one else "arm" for one in control[1:])]
    of = [name.removesuffix("+place") if name.endswith("+place") else "" for name in names]
    new = data.drop_vars(["control"])
    new = new.rename({"window": "text", "nll": "nats", "same": "agreement", "held": "bytes"})
    return _completed(new, roles, of, "eviction")


def _completed(data: xr.Dataset, roles: Sequence[str], of: Sequence[str], kind: str) -> xr.Dataset:
    count = len(roles)
    coordinates = {"role": list(roles), "of": list(of), "draw": [0] * count, "against": [REFERENCE] * count}
    if "series" not in data.coords:
        coordinates["series"] = [""] * count
    record = {**json.loads(data.attrs["record"]), "kind": kind}
    data = data.assign_coords({name: ("arm", values) for name, values in coordinates.items()})
    return data.assign_coords(arm=[REFERENCE, *map(str, data["arm"].values[1:])]).assign_attrs(
        record=json.dumps(record)
    )


def _columns(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
