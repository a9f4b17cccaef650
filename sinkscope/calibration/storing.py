"""A choice on disk: the scores of every text, so that its table, figures and page can be made again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.calibration.choosing import Choice
from sinkscope.calibration.saving import from_json
from sinkscope.calibration.scoring import Scores
from sinkscope.errors import InputError
from sinkscope.netcdf import read_netcdf, write_netcdf

SCORES = ("loss", "entropy", "right")


def store(choice: Choice, path: str | Path, about: Mapping[str, Any]) -> None:
    """Write a choice to one netCDF file, whole or not at all; `about`: what it is of, JSON-able."""
    pairs = list(choice.arms.values())
    first, held = pairs[0]
    data = xr.Dataset(
        {
            name: (
                ("arm", "text"),
                np.stack([np.concatenate([getattr(half, name) for half in pair]) for pair in pairs]),
            )
            for name in SCORES
        },
        coords={
            "arm": list(choice.arms),
            "held_out": ("text", [False] * len(first.loss) + [True] * len(held.loss)),
        },
    )
    gains = {name: [[*head, gain] for head, gain in own.items()] for name, own in choice.gains.items()}
    record = {
        "option": choice.option,
        "heads": [list(head) for head in choice.heads],
        "objective": choice.objective,
        "intervention": None if choice.intervention is None else choice.intervention.describe(),
        "gains": gains,
        "record": dict(choice.record),
        "about": dict(about),
    }
    write_netcdf(data.assign_attrs(choice=json.dumps(record)), path)


def stored(path: str | Path) -> tuple[Choice, dict[str, Any]]:
    """What `store` wrote: the choice, and what it is of. Raises `InputError` for a file that is none."""
    try:
        data = read_netcdf(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if "choice" not in data.attrs or not {*SCORES, "held_out"} <= {*data.variables}:
        raise InputError(f"{path} holds no choice of a calibration")
    record = json.loads(data.attrs["choice"])
    held = data["held_out"].values.astype(bool)

    def scores(arm: str, part: np.ndarray) -> Scores:
        return Scores(*(data[name].sel(arm=arm).values[part] for name in SCORES))

    choice = Choice(
        record["option"],
        tuple((layer, head) for layer, head in record["heads"]),
        None if record["intervention"] is None else from_json(record["intervention"]),
        record["objective"],
        {str(arm): (scores(arm, ~held), scores(arm, held)) for arm in data["arm"].values},
        {name: {(a, b): gain for a, b, gain in own} for name, own in record["gains"].items()},
        record["record"],
    )
    return choice, record["about"]
