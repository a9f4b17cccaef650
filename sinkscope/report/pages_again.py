"""The pages that commands wrote, made again from what they stored beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sinkscope.calibration import stored as stored_choice
from sinkscope.errors import InputError
from sinkscope.netcdf import read_netcdf
from sinkscope.quantization import Hazards, Study
from sinkscope.report.changing import calibration_page, quantization_page
from sinkscope.report.page import Page
from sinkscope.report.trial_page import trial_page
from sinkscope.trials import load

TRIALS = ("trial.nc", "comparison.nc")  # comparisons of caches were trials by another name
STUDY, HAZARDS, CHOICE = "study.nc", "hazards.json", "choice.nc"


def page_of(path: Path) -> Page | None:
    """The page of a trial, a study, hazards or a calibration: of a file, or of their command's folder.

    None for what is none of these. Raises `InputError` for one that is damaged.
    """
    if (path / STUDY).is_file() or (path / HAZARDS).is_file():
        return _quantized(path / STUDY, path / HAZARDS)
    for name in (CHOICE, *TRIALS):
        if (path / name).is_file():
            return page_of(path / name)
    if path.name == HAZARDS and path.is_file():
        return _quantized(None, path)
    made = _KINDS.get(_kind(path)) if path.suffix == ".nc" else None
    return None if made is None else made(path)


def _quantized(study: Path | None, hazards: Path | None) -> Page:
    found = Study.load(study) if study is not None and study.is_file() else None
    looked = _hazards(hazards) if hazards is not None and hazards.is_file() else None
    model = found.record["model"] if found is not None else looked.record["model"] if looked is not None else ""
    return quantization_page(str(model), found, looked)


def _hazards(path: Path) -> Hazards:
    try:
        return Hazards.from_json(json.loads(path.read_text(encoding="utf-8")))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error


def _calibrated(path: Path) -> Page:
    return calibration_page(*stored_choice(path))


def _trial(path: Path) -> Page:
    return trial_page(load(path))


_KINDS: dict[str, Callable[[Path], Page]] = {
    "study": lambda path: _quantized(path, None),
    "choice": _calibrated,
    "trial": _trial,
}


def _kind(path: Path) -> str:
    """What a netCDF file holds, by what only such files have; empty for measurements and what cannot be read."""
    try:
        data = read_netcdf(path)
    except OSError:
        return ""
    trial = ("text" in data.dims and "role" in data.coords) or "control" in data.coords
    marks = {"trial": trial, "study": "role" in data.coords, "choice": "choice" in data.attrs}
    return next((kind for kind, there in marks.items() if there), "")
