"""Choices stored before calibrations were trials: read, no longer written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.errors import InputError, unknown
from sinkscope.files.netcdf import read_netcdf
from sinkscope.interventions import Intervention
from sinkscope.interventions.reweigh import Head, from_json
from sinkscope.statistics import Interval, mean_interval
from sinkscope.trials.choosing import Objective
from sinkscope.trials.predictions import TextScores

SCORES = ("loss", "entropy", "right")
CHOSEN, ALL, NOTHING = "chosen", "all heads", "nothing"


@dataclass(frozen=True, eq=False)
class StoredChoice:
    """A choice as `choice.nc` holds it: scores per text of each arm, on texts to choose on and on held-out ones.

    Attributes:
        option: The setting's name.
        heads: Its heads.
        intervention: None if nothing was chosen.
        objective: What was minimized.
        arms: `nothing`, `chosen`, `all heads` and controls: scores on both parts.
        gains: By how much each head alone lowered the objective, for each setting.
        record: How it was made.
    """

    option: str
    heads: tuple[Head, ...]
    intervention: Intervention | None
    objective: Objective
    arms: Mapping[str, tuple[TextScores, TextScores]]
    gains: Mapping[str, Mapping[Head, float]]
    record: Mapping[str, Any] = field(default_factory=dict)

    def difference(self, arm: str, *, held_out: bool = True) -> Interval:
        """By how much an arm's losses differ from those of nothing, paired by text: 95 %, Student's t over texts."""
        if arm not in self.arms:
            raise unknown("arm", arm, self.arms)
        changed, unchanged = (self.arms[name][int(held_out)].loss for name in (arm, NOTHING))
        return mean_interval(changed - unchanged)

    def table(self) -> pd.DataFrame:
        """One row per arm: loss and its differences on both halves, accuracy and entropy on held-out texts."""
        rows = []
        for arm, (_, after) in self.arms.items():
            first, held = self.difference(arm, held_out=False), self.difference(arm)
            row: dict[str, Any] = {"arm": arm, "control": arm.startswith("control"), "loss": float(after.loss.mean())}
            row |= {"chosen_on": first.value, "held_out": held.value, "low": held.low, "high": held.high}
            row |= {"right": float(after.right.mean()), "entropy": float(after.entropy.mean())}
            rows.append(row)
        return pd.DataFrame(rows)

    @property
    def verdict(self) -> str:
        """What the held-out texts show."""
        if self.intervention is None:
            return f"Nothing got better by {self.option}: nothing was chosen."
        held = self.difference(CHOSEN)
        where = f"in {len(self.heads)} heads" if self.heads else "in the heads that it finds"
        effect = f"{held.value:+.4f} nats on texts held out ({held.low:+.4f} to {held.high:+.4f})"
        return f"{self.option} {where}: {effect}."


def stored_choice(path: str | Path) -> tuple[StoredChoice, dict[str, Any]]:
    """An old `choice.nc`: the choice, and what it is of. Raises `InputError` for other files."""
    try:
        data = read_netcdf(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if "choice" not in data.attrs or not {*SCORES, "held_out"} <= {*data.variables}:
        raise InputError(f"{path} is not a stored choice of a calibration")
    record = json.loads(data.attrs["choice"])
    held = data["held_out"].values.astype(bool)

    def scores(arm: str, texts: np.ndarray) -> TextScores:
        return TextScores(*(data[name].sel(arm=arm).values[texts] for name in SCORES))

    choice = StoredChoice(
        record["option"],
        tuple((layer, head) for layer, head in record["heads"]),
        None if record["intervention"] is None else from_json(record["intervention"]),
        record["objective"],
        {str(arm): (scores(arm, ~held), scores(arm, held)) for arm in data["arm"].values},
        {name: {(a, b): gain for a, b, gain in by_head} for name, by_head in record["gains"].items()},
        record["record"],
    )
    return choice, record["about"]
