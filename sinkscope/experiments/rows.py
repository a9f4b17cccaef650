"""Runs as rows: two files of JSON lines, one run a line in each, sorted by key and seed, read by many questions.

`runs.jsonl` holds `key` (`keys.key_of`), `seed`, `run` (the name of its folder), `status`, `layout`, `seconds`, where
known `started`, `reason`, `host` and `registered`, then `metrics`, and `heads` as they were at the last evaluation.
`runs.curves.jsonl` holds `key`, `seed`, `steps` and `curves`. What is not a number is null.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError
from sinkscope.experiments.observed import LARGEST, Observed, largest_known
from sinkscope.experiments.question import Question
from sinkscope.files import write_text

if TYPE_CHECKING:
    from sinkscope.experiments.jobs import Job


Key = tuple[str, int]  # the key of a job, and a seed


def keys(question: Question, scale: str) -> dict[str, str]:
    """The key of each variation by its label; variations with one key have, seed by seed, one run.

    Empty at a scale at which the question cannot be asked. Raises `InputError` for wrong recipes.
    """
    if scale in question.not_at:
        return {}
    try:
        return {label: key_of(job) for (label, _), job in question.recipes(scale, [0]).items()}
    except InputError as error:
        raise InputError(f"experiment '{question.name}': {error}") from error


def key_of(job: Job) -> str:
    """12 hex digits of the sha256 over a job of seed 0: what decides its numbers, and which text it reads by name.

    Unlike the name of a run's folder it is known without the text, which need not be prepared on this machine.
    """
    kind = str(job.model_dump(mode="json").get("task", "recipe"))
    text = json.dumps([job.folder({}), job.reads], sort_keys=True)
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:12]


ROW = ("run", "status", "seed", "seconds", "reason", "layout", "started", "host", "registered")
DIGITS = 9  # significant digits that are kept, with which a float32 is read back as it was


def read_rows(path: Path) -> Mapping[Key, Observed]:
    """The runs in a file of rows, by key and seed.

    Raises `InputError` for a file that is not there or damaged, with the line, and for a run that stands twice.
    """
    try:
        there = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return _read(path, there.st_size, there.st_mtime_ns)


def write_rows(path: Path, runs: Mapping[Key, Observed]) -> None:
    """Write runs as rows, each file whole or as it was before; the file of curves first."""
    rows, curves = [], []
    for (key, seed), run in sorted(runs.items()):
        fields = {name: value for name, value in vars(run).items() if name in ROW and value not in ("", {})}
        heads = {name: _plain(numbers[-1]) for name, numbers in run.heads.items() if numbers}
        metrics = dict(zip(run.metrics, _plain(run.metrics.values()), strict=True))
        rows.append({"key": key, **fields, "metrics": metrics, "heads": heads})
        # Of the heads over training only the largest number is kept, which claims read as a curve.
        tops = {f"{LARGEST}{name}": map(largest_known, kept) for name, kept in run.heads.items() if len(kept) > 1}
        known = {name: _plain(values) for name, values in {**tops, **run.curves}.items()}
        curves.append({"key": key, "seed": seed, "steps": list(run.steps), "curves": known})
    write_text(curves_of(path), _lines(curves))
    write_text(path, _lines(rows))


def curves_of(path: Path) -> Path:
    """Where the curves of a file of rows stand."""
    return path.with_suffix(f".curves{path.suffix}")


@lru_cache(maxsize=4)
def _read(path: Path, size: int, changed: int) -> Mapping[Key, Observed]:
    """`size` and `changed`: what tells one version of the file from another."""
    curves = dict(_parsed(curves_of(path)))
    found: dict[Key, Observed] = {}
    for place, row in _parsed(path):
        try:
            found[place] = _observed(row, curves.get(place, {}))
        except InputError as error:
            raise InputError(f"{path}, seed {place[1]} of {place[0]}: {error}") from error
    return found


def _parsed(path: Path) -> Iterable[tuple[Key, dict[str, Any]]]:
    """Every row with its key and seed."""
    seen: set[Key] = set()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            place = (str(row["key"]), int(row["seed"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise InputError(f"{path}, line {number}: this is no row of a run: {why}") from error
        if place in seen:
            raise InputError(f"{path}, line {number}: seed {place[1]} of {place[0]} stands there twice")
        seen.add(place)
        yield place, row


def _observed(row: Mapping[str, Any], curves: Mapping[str, Any]) -> Observed:
    fields = {name: value for name, value in row.items() if name not in ("key", "heads")}
    return Observed.from_dict(
        {
            **fields,
            "steps": curves.get("steps", []),
            "curves": curves.get("curves", {}),
            "heads": {name: [_line(numbers)] for name, numbers in row.get("heads", {}).items()},
        }
    )


def _line(numbers: Iterable[float | None]) -> str:
    return " ".join("nan" if value is None else repr(value) for value in numbers)


def _plain(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values]


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
