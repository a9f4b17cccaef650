"""The pages that commands wrote, made again from what they stored beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.names import short
from sinkscope.netcdf import read_netcdf
from sinkscope.quantization import Hazards
from sinkscope.report.calibrated import heads_sections, stored_page
from sinkscope.report.hazards_page import hazards_page, hazards_sections
from sinkscope.report.page import Page
from sinkscope.report.trial_page import trial_page
from sinkscope.trials import load, stored_choice

TRIALS = ("trial.nc", "study.nc", "comparison.nc")  # studies and comparisons of caches were trials before
HAZARDS, CHOICE = "hazards.json", "choice.nc"


def page_of(path: Path) -> Page | None:
    """The page of a trial, hazards or a calibration: of a file, or of their command's folder.

    None for what is none of these. Raises `InputError` for one that is damaged.
    """
    for name in TRIALS:
        if (path / name).is_file():
            return _trial(path / name, path / HAZARDS)
    for name in (HAZARDS, CHOICE):
        if (path / name).is_file():
            return page_of(path / name)
    if path.name == HAZARDS and path.is_file():
        looked = _hazards(path)
        return hazards_page(str(looked.record["model"]), looked)
    made = _KINDS.get(_kind(path)) if path.suffix == ".nc" else None
    return None if made is None else made(path)


def _trial(path: Path, hazards: Path | None = None) -> Page:
    trial = load(path)
    record = trial.record
    more = [*heads_sections(trial)]
    if hazards is not None and hazards.is_file():
        more += hazards_sections(_hazards(hazards))
    title = f"{record['scheme']} on {short(str(record.get('model', '')))}" if "scheme" in record else ""
    return trial_page(trial, title=title, more=more)


def _hazards(path: Path) -> Hazards:
    try:
        return Hazards.from_json(json.loads(path.read_text(encoding="utf-8")))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error


def _calibrated(path: Path) -> Page:
    return stored_page(*stored_choice(path))


_KINDS: dict[str, Callable[[Path], Page]] = {
    "trial": _trial,
    "choice": _calibrated,
}


def _kind(path: Path) -> str:
    """What a netCDF file holds, by what only such files have; empty for measurements and what cannot be read."""
    try:
        data = read_netcdf(path)
    except OSError:
        return ""
    of_caches = "control" in data.coords  # as comparisons were stored before
    marks = {"trial": "role" in data.coords or of_caches, "choice": "choice" in data.attrs}
    return next((kind for kind, there in marks.items() if there), "")
