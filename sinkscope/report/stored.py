"""The results at the paths of `sinkscope report`: runs, measurements, trials, surveys, experiments, verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.checks import Card
from sinkscope.errors import InputError
from sinkscope.experiments import QUESTIONS, SCALES, Findings, Question, questions_in, with_rows
from sinkscope.files.netcdf import read_netcdf
from sinkscope.measurement import SURVEY_JSON, Measurement, Survey
from sinkscope.quantization import Hazards
from sinkscope.report.check_page import check_page
from sinkscope.report.experiments.entry import ExperimentEntry, entry, unknown_entry
from sinkscope.report.hazards_page import hazards_page
from sinkscope.report.page import Page
from sinkscope.report.runs import StoredRun, read_run
from sinkscope.report.trial_page import choice_page, trial_page
from sinkscope.statistics.claims import Verdict
from sinkscope.training import LOG
from sinkscope.trials import load, stored_choice

VERDICTS = "verdicts.json"
TRIALS = ("trial.nc", "study.nc", "comparison.nc")  # studies and comparisons of caches were trials before
HAZARDS, CHOICE, CARD = "hazards.json", "choice.nc", "card.json"
MEASUREMENT = "measurement.nc"
KINDS = (
    "a run folder, a folder of runs, a measurement, a trial or a calibration (.nc or its folder), a report card "
    "(card.json or its folder), a survey's folder, a record (.json) or folder of experiments, a question's rows "
    "(.jsonl), or verdicts (verdicts.json)"
)


@dataclass
class Stored:
    """Results by kind; names are those of files and folders, numbered if they repeat."""

    runs: list[StoredRun] = field(default_factory=list)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    surveys: dict[str, Survey] = field(default_factory=dict)
    entries: list[ExperimentEntry] = field(default_factory=list)
    claims: dict[str, Sequence[Verdict]] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)
    """Pages of results that have one of their own: trials, hazards, calibrations, report cards."""


def read_results(paths: Iterable[Path]) -> Stored:
    """The results at the paths. Raises `InputError` for a path that is missing, damaged or not a result.

    A Python file holds questions: the other paths' records of experiments are judged by them.
    """
    paths = list(paths)
    questions = dict(QUESTIONS)
    for path in paths:
        if path.suffix == ".py":
            questions |= questions_in(path)
    stored = Stored()
    for path in paths:
        if path.suffix != ".py":
            _add(stored, path, questions)
    return stored


def page_of(path: Path) -> Page | None:
    """The page of a stored trial, hazards, calibration or report card: of their file, or of their command's folder.

    None for anything else. Raises `InputError` for one that is damaged.
    """
    for name in (*TRIALS, HAZARDS, CHOICE, CARD):
        if (path / name).is_file():
            return page_of(path / name)
    if path.name == CARD and path.is_file():
        try:
            return check_page(Card.load(path))
        except KeyError as error:
            raise InputError(f"{path} is no whole report card: it has no {error}") from error
    if path.name == HAZARDS and path.is_file():
        return hazards_page(_hazards(path))
    kind = _netcdf_kind(path) if path.suffix == ".nc" else ""
    if kind == "trial":
        hazards = path.with_name(HAZARDS)
        return trial_page(load(path), hazards=_hazards(hazards) if hazards.is_file() else None)
    return choice_page(*stored_choice(path)) if kind == "choice" else None


def entries_of(findings: Sequence[Findings], questions: Mapping[str, Question]) -> list[ExperimentEntry]:
    """The findings with their questions, in the order of the questions, and with the rows that come with a question."""
    by_key = {(each.question, each.scale): each for each in findings}
    in_order = [(name, scale) for scale in SCALES for name in questions if (name, scale) in by_key]
    judged = [entry(questions[n], with_rows(questions[n], scale, by_key[n, scale]), scale) for n, scale in in_order]
    return [*judged, *(unknown_entry(each) for key, each in by_key.items() if key not in in_order)]


def entries_with(rows: Path, questions: Mapping[str, Question]) -> list[ExperimentEntry]:
    """The questions that come with a file of rows, judged at the smallest scale by this file alone.

    Raises `InputError` for a damaged file, and if no installed question reads it.
    """
    matching = [each for each in questions.values() if each.records is not None and each.records.samefile(rows)]
    if not matching:
        raise InputError(f"{rows}: no installed question reads these rows")
    return [entry(each, with_rows(each, SCALES[0], None), SCALES[0]) for each in matching]


def read_findings(path: Path) -> Findings:
    """One record of an experiment. Raises `InputError` for anything else."""
    data = _json(path)
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a record of an experiment")
    try:
        return Findings.from_dict(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def records_in(folder: Path) -> list[Path]:
    """The records of experiments in a folder such as `results/experiments`, or in one of its folders per scale."""
    if folder.name in SCALES:
        return sorted(folder.glob("*.json"))
    return [path for scale in SCALES for path in sorted((folder / scale).glob("*.json"))]


def _add(stored: Stored, path: Path, questions: Mapping[str, Question]) -> None:
    if not path.exists():
        raise InputError(f"nothing at {path}")
    if (page := page_of(path)) is not None:
        stored.pages[_free(path.stem if path.is_file() else path.name, stored.pages)] = page
    elif path.suffix == ".nc":
        stored.measurements[_free(path.stem, stored.measurements)] = Measurement.load(path)
    elif (path / MEASUREMENT).is_file():
        stored.measurements[_free(path.name, stored.measurements)] = Measurement.load(path / MEASUREMENT)
    elif folders := _run_folders(path):
        stored.runs += [read_run(folder) for folder in folders]
    elif (path / SURVEY_JSON).is_file():
        stored.surveys[_free(path.name, stored.surveys)] = Survey.load(path)
    elif (path / VERDICTS).is_file():
        stored.claims[_free(path.name, stored.claims)] = _verdicts(path / VERDICTS)
    elif path.name == VERDICTS:
        stored.claims[_free(path.parent.name or path.stem, stored.claims)] = _verdicts(path)
    elif records := records_in(path):
        stored.entries += entries_of([read_findings(record) for record in records], questions)
    elif path.suffix == ".json" and path.is_file():
        stored.entries += entries_of([read_findings(path)], questions)
    elif path.suffix == ".jsonl" and path.is_file():
        stored.entries += entries_with(path, questions)
    else:
        raise InputError(f"{path} is neither {KINDS}")


def _hazards(path: Path) -> Hazards:
    data = _json(path)
    try:
        return Hazards.from_json(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _netcdf_kind(path: Path) -> str:
    """What a netCDF file holds, by what only such files have; empty for measurements and what cannot be read."""
    try:
        data = read_netcdf(path)
    except OSError:
        return ""
    if "role" in data.coords or "control" in data.coords:  # the latter as comparisons of caches were stored before
        return "trial"
    return "choice" if "choice" in data.attrs else ""


def _run_folders(path: Path) -> list[Path]:
    if (path / LOG).is_file():
        return [path]
    return sorted(folder.parent for folder in path.glob(f"*/{LOG}"))


def _verdicts(path: Path) -> list[Verdict]:
    data = _json(path)
    if not isinstance(data, list) or not all(isinstance(part, dict) for part in data):
        raise InputError(f"{path} holds no verdicts")
    try:
        return [Verdict.from_dict(part) for part in data]
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _free(name: str, taken: Mapping[str, object]) -> str:
    numbered = (f"{name} ({number})" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in numbered if other not in taken)
