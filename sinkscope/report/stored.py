"""What the paths given to `sinkscope report` hold: runs, measurements, surveys, experiments, checks of theory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.experiments import QUESTIONS, SCALES, Findings, Question, questions_in, with_rows
from sinkscope.measurement import SURVEY_JSON, Measurement, Survey
from sinkscope.report.experiments.entry import Entry, entry, unknown_entry
from sinkscope.report.page import Page
from sinkscope.report.pages_again import page_of
from sinkscope.report.runs import StoredRun, read_run
from sinkscope.statistics.claims import Verdict
from sinkscope.training import LOG

THEORY = "verdicts.json"
KINDS = (
    "a run folder, a folder of runs, a measurement, a trial or a calibration (.nc or its folder), a survey's "
    "folder, a record (.json) or folder of experiments, a question's rows (.jsonl), or verdicts (verdicts.json)"
)


@dataclass
class Stored:
    """Results by kind; names are file and folder names, numbered where they repeat."""

    runs: list[StoredRun] = field(default_factory=list)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    surveys: dict[str, Survey] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    claims: dict[str, Sequence[Verdict]] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)
    """Of what has a page of its own: trials, hazards, calibrations."""


def read(paths: Iterable[Path]) -> Stored:
    """Everything that the paths hold. Raises `InputError` for what is absent, damaged or something else.

    A Python file is one with questions: records of experiments beside it are judged by them.
    """
    given = list(paths)
    questions = dict(QUESTIONS)
    for path in given:
        if path.suffix == ".py":
            questions |= questions_in(path)
    stored = Stored()
    for path in given:
        if path.suffix != ".py":
            _add(stored, path, questions)
    return stored


def entries_of(findings: Sequence[Findings], questions: Mapping[str, Question]) -> list[Entry]:
    """The findings with their questions, in the order of these, and with the rows that come with a question."""
    found = {(each.question, each.scale): each for each in findings}
    places = [(name, scale) for scale in SCALES for name in questions if (name, scale) in found]
    asked = [entry(questions[n], with_rows(questions[n], scale, found[n, scale]), scale) for n, scale in places]
    return [*asked, *(unknown_entry(each) for key, each in found.items() if key not in places)]


def entries_with(rows: Path, questions: Mapping[str, Question], scale: str = "nano") -> list[Entry]:
    """The questions that come with a file of rows, judged by it alone.

    Raises `InputError` for a damaged file, and where no question that is installed reads it.
    """
    asked = [each for each in questions.values() if each.records is not None and each.records.samefile(rows)]
    if not asked:
        raise InputError(f"{rows}: no question that is installed reads these rows")
    return [entry(each, with_rows(each, scale, None), scale) for each in asked]


def read_findings(path: Path) -> Findings:
    """One record of an experiment. Raises `InputError` for anything else."""
    data = _json(path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: this is no record of an experiment")
    try:
        return Findings.from_dict(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def records_in(folder: Path) -> list[Path]:
    """The records of experiments in a folder such as `results/experiments`, or in that of one scale in it."""
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
    elif folders := _run_folders(path):
        stored.runs += [read_run(folder) for folder in folders]
    elif (path / SURVEY_JSON).is_file():
        stored.surveys[_free(path.name, stored.surveys)] = Survey.load(path)
    elif (path / THEORY).is_file():
        stored.claims[_free(path.name, stored.claims)] = _verdicts(path / THEORY)
    elif path.name == THEORY:
        stored.claims[_free(path.parent.name or path.stem, stored.claims)] = _verdicts(path)
    elif records := records_in(path):
        found = [read_findings(record) for record in records]
        stored.entries += entries_of(found, questions)
    elif path.suffix == ".json" and path.is_file():
        stored.entries += entries_of([read_findings(path)], questions)
    elif path.suffix == ".jsonl" and path.is_file():
        stored.entries += entries_with(path, questions)
    else:
        raise InputError(f"{path} is neither {KINDS}")


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
