"""Runs as rows: two files of JSON lines with one run per line, sorted by key and seed, which many questions share.

`runs.jsonl` holds `key` (`key_of`), `seed`, `run` (the name of its folder), `status`, `layout`, `seconds`, if known
`started`, `reason`, `host`, `registered` and `text`, then `metrics`, and `heads` at the last evaluation.
`runs.curves.jsonl` holds `key`, `seed`, `steps` and `curves`. NaN is null. `runs.texts.json`, where it is there, holds
the fingerprint of each corpus by its name: runs on another text are no further seeds of these.
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
    """The key of each variation by label; variations with the same key share the run of each seed.

    Empty at a scale where the question cannot be asked. Raises `InputError` for wrong recipes.
    """
    return {label: key_of(job) for label, job in first_jobs(question, scale).items()}


def first_jobs(question: Question, scale: str) -> dict[str, Job]:
    """The job of seed 0 of each variation, as `keys`."""
    if scale in question.not_at:
        return {}
    try:
        return {label: job for (label, _), job in question.recipes(scale, [0]).items()}
    except InputError as error:
        raise InputError(f"experiment '{question.name}': {error}") from error


def key_of(job: Job) -> str:
    """12 hex digits of the sha256 of a job of seed 0: what decides its numbers, and the name of the text it reads.

    Unlike the name of a run's folder it is known without the text, which need not be prepared on this machine.
    """
    kind = str(job.model_dump(mode="json").get("task", "recipe"))
    text = json.dumps([job.folder({}), job.reads], sort_keys=True)
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:12]


ROW = ("run", "status", "seed", "seconds", "reason", "layout", "started", "host", "registered", "text")
DIGITS = 9  # significant digits, which restore a float32 exactly


def read_rows(path: Path) -> Mapping[Key, Observed]:
    """The runs in a file of rows, by key and seed.

    Raises `InputError` for a missing or damaged file, with the line, and for a run that occurs twice.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return _read(path, stat.st_size, stat.st_mtime_ns)


def write_rows(path: Path, runs: Mapping[Key, Observed]) -> None:
    """Write runs as rows, each file atomically, the file of curves first."""
    rows, curves = [], []
    for (key, seed), run in sorted(runs.items()):
        fields = {name: value for name, value in vars(run).items() if name in ROW and value not in ("", {})}
        heads = {name: _plain(numbers[-1]) for name, numbers in run.heads.items() if numbers}
        metrics = dict(zip(run.metrics, _plain(run.metrics.values()), strict=True))
        rows.append({"key": key, **fields, "metrics": metrics, "heads": heads})
        # For heads over training only the largest number is kept, which claims read as a curve.
        tops = {f"{LARGEST}{name}": map(largest_known, kept) for name, kept in run.heads.items() if len(kept) > 1}
        plain_curves = {name: _plain(values) for name, values in {**tops, **run.curves}.items()}
        curves.append({"key": key, "seed": seed, "steps": list(run.steps), "curves": plain_curves})
    write_text(curves_of(path), _lines(curves))
    write_text(path, _lines(rows))


def curves_of(path: Path) -> Path:
    """The path of the curves that go with a file of rows."""
    return path.with_suffix(f".curves{path.suffix}")


def read_texts(path: Path) -> dict[str, str]:
    """The sha256 of the text of each corpus that a file of rows was made with; empty where no file says so.

    Raises `InputError` for a damaged file.
    """
    texts = path.with_suffix(".texts.json")
    try:
        fingerprints = json.loads(texts.read_text(encoding="utf-8"))
        return {name: str(fingerprint["text_sha256"]) for name, fingerprint in fingerprints.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {texts}: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=4)
def _read(path: Path, size: int, changed: int) -> Mapping[Key, Observed]:
    """`size` and `changed` tell versions of the file apart."""
    curves = dict(_parsed(curves_of(path)))
    runs: dict[Key, Observed] = {}
    seed_of: dict[str, int] = {}
    for (key, seed), row in _parsed(path):
        try:
            runs[key, seed] = _observed(row, curves.get((key, seed), {}))
        except InputError as error:
            raise InputError(f"{path}, seed {seed} of {key}: {error}") from error
        if seed_of.setdefault(name := runs[key, seed].run, seed) != seed:
            raise InputError(f"{path}, seed {seed} of {key}: {name} is there as seed {seed_of[name]} already")
    return runs


def _parsed(path: Path) -> Iterable[tuple[Key, dict[str, Any]]]:
    """All rows with their key and seed."""
    seen: set[Key] = set()
    try:
        with path.open(encoding="utf-8") as stream:  # `str.splitlines` would end a line within a string, at U+2028
            lines = stream.readlines()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            key = (str(row["key"]), int(row["seed"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise InputError(f"{path}, line {number}: this is not a row of a run: {why}") from error
        if key in seen:
            raise InputError(f"{path}, line {number}: seed {key[1]} of {key[0]} occurs twice")
        seen.add(key)
        yield key, row


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
