"""The findings of an experiment: its runs and their provenance, as one JSON record per question and scale.

Findings come from the user's own records under `results`, and from the file of rows that comes with a question.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.observed import NewerRecord, Observed
from sinkscope.experiments.question import SCALES, Question
from sinkscope.experiments.registration import SHORT
from sinkscope.experiments.rows import Key, first_jobs, key_of, read_rows, read_texts
from sinkscope.files import write_json

if TYPE_CHECKING:  # jobs load torch
    from sinkscope.experiments.jobs import Job

RESULTS = Path("results/experiments")  # where `run` keeps findings


@dataclass(frozen=True)
class Findings:
    """The runs of a question at a scale, by label and seed; `failed` says why others are missing.

    `notes`: lines about runs that are known and not among these, where findings come from several places; not stored.
    """

    question: str
    scale: str
    seeds: int
    runs: Mapping[str, Mapping[int, Observed]]
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of_seed(self, seed: int) -> dict[str, Observed]:
        """The runs of a seed that exist."""
        return {label: seeds[seed] for label, seeds in self.runs.items() if seed in seeds}

    @property
    def seconds(self) -> float:
        """The seconds of all runs; a run under two labels counts once."""
        return math.fsum({run.run: run.seconds for seeds in self.runs.values() for run in seeds.values()}.values())

    @property
    def cost(self) -> dict[str, int | float]:
        """The number of runs, their total seconds, and the mean per run."""
        count = len({run.run for seeds in self.runs.values() for run in seeds.values()})
        return {
            "runs": count,
            "seconds": round(self.seconds, 1),
            "seconds_per_run": round(self.seconds / max(1, count), 1),
        }

    def same(self, other: Findings) -> bool:
        """Whether everything is equal; unknown values count as equal to each other."""
        cells, others = self._cells(), other._cells()
        return (
            (self.question, self.scale, self.seeds) == (other.question, other.scale, other.seeds)
            and (self.failed, self.provenance) == (other.failed, other.provenance)
            and list(cells) == list(others)
            and all(run.same(others[cell]) for cell, run in cells.items())
        )

    def _cells(self) -> dict[tuple[str, int], Observed]:
        return {(label, seed): run for label, seeds in self.runs.items() for seed, run in seeds.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data."""
        return {
            "question": self.question,
            "scale": self.scale,
            "seeds": self.seeds,
            "runs": {
                label: {str(seed): run.to_dict() for seed, run in seeds.items()} for label, seeds in self.runs.items()
            },
            "failed": {label: {str(seed): why for seed, why in seeds.items()} for label, seeds in self.failed.items()},
            "cost": self.cost,
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Findings:
        """Back from plain data. Raises `InputError` for data of another form."""
        try:
            runs = {
                label: {int(seed): Observed.from_dict(run) for seed, run in seeds.items()}
                for label, seeds in data["runs"].items()
            }
            seed_of: dict[str, int] = {}
            for label, seeds in runs.items():
                for seed, run in seeds.items():
                    if run.seed != seed:
                        raise InputError(f"'{label}', seed {seed}: this is the run of seed {run.seed}, {run.run}")
                    if seed_of.setdefault(run.run, seed) != seed:
                        raise InputError(f"'{label}': {run.run} is there as seed {seed_of[run.run]} and as seed {seed}")
            failed = {
                label: {int(seed): str(why) for seed, why in seeds.items()} for label, seeds in data["failed"].items()
            }
            return cls(data["question"], data["scale"], int(data["seeds"]), runs, failed, dict(data["provenance"]))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"this is not a record of an experiment: {type(error).__name__}: {error}") from error


def path_of(folder: Path, question: str, scale: str) -> Path:
    """The path of a question's record at a scale. Raises `InputError` for a name that cannot be a file's."""
    if not question or Path(question).name != question:
        raise InputError(
            f"experiment '{question}': the name is also a file's name, which must hold no '/' and not be empty"
        )
    return folder / scale / f"{question}.json"


def write_findings(folder: Path, findings: Findings) -> Path:
    """Write a record atomically; return its path."""
    path = path_of(folder, findings.question, findings.scale)
    write_json(path, findings.to_dict())
    return path


def read_findings(folder: Path, question: str, scale: str) -> Findings | None:
    """The record of a question at a scale; None if there is none. Raises `InputError` for a damaged file."""
    path = path_of(folder, question, scale)
    if not path.exists():
        return None
    try:
        findings = Findings.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except NewerRecord as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except (OSError, ValueError, RecursionError, InputError) as error:
        raise InputError(f"cannot read {path}: {error}; move it away, and `experiment run` makes it again") from error
    if (findings.question, findings.scale) != (question, scale):
        raise InputError(
            f"cannot read {path}: it holds '{findings.question}' at scale '{findings.scale}'; move it there"
        )
    return findings


@dataclass
class RecordFile:
    """A question's record at a scale, read again whenever the file has changed.

    Files are replaced whole, so the same inode, size and time mean the same content. The result is shared: do not
    change it.
    """

    folder: Path
    question: str
    scale: str
    _read: tuple[tuple[int, int, int], Findings | None] | None = None

    def now(self) -> Findings | None:
        """As `read_findings`."""
        try:
            stat = path_of(self.folder, self.question, self.scale).stat()
        except OSError:
            return read_findings(self.folder, self.question, self.scale)
        state = stat.st_ino, stat.st_size, stat.st_mtime_ns
        if self._read is None or self._read[0] != state:
            self._read = state, read_findings(self.folder, self.question, self.scale)
        return self._read[1]


def recorded_runs(folder: Path, question: str, scale: str) -> dict[str, tuple[Observed, Findings]]:
    """Every run in the records of a scale, by name, each with its record: these need not be trained again.

    A run in several records is taken from the question's own if it is there. A damaged record of another question is
    skipped; commands on that question report it.
    """
    path = path_of(folder, question, scale)
    # The question's own record first: `setdefault` below keeps the first run of a name.
    names = sorted((other.stem for other in path.parent.glob("*.json")), key=lambda name: (name != question, name))
    runs: dict[str, tuple[Observed, Findings]] = {}
    for name in names:
        try:
            record = read_findings(folder, name, scale)
        except InputError:
            if name == question:
                raise
            continue
        if record is None:  # removed meanwhile
            continue
        for run in (run for seeds in record.runs.values() for run in seeds.values()):
            runs.setdefault(run.run, (run, record))
    return runs


def known(question: Question, scale: str = "nano", results: Path = RESULTS) -> Findings | None:
    """The findings of a question: its own record under `results`, and the runs in its file of rows.

    None if there is no run at all. Raises `InputError` for an unknown scale and for files that cannot be read.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    for folder in (results, results / scale):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is not a folder: records are files in folders by scale")
    return with_rows(question, scale, read_findings(results, question.name, scale))


def with_rows(question: Question, scale: str, record: Findings | None) -> Findings | None:
    """A question's record and the runs in its file of rows; None if there are none.

    A seed in both is taken from the rows: made again, it is no further model. Runs of a variation that were trained on
    another text than the rows' (than most, where these do not say) are left out. `Findings.notes` says both.
    """
    jobs: Mapping[str, Job] = {}
    rows: Mapping[Key, Observed] = {}
    texts: Mapping[str, str] = {}
    if question.records is not None:
        jobs, rows, texts = first_jobs(question, scale), read_rows(question.records), read_texts(question.records)
    runs = {label: dict(seeds) for label, seeds in record.runs.items()} if record else {}
    stored: dict[str, Observed] = {}
    again: dict[str, list[int]] = {}
    elsewhere: dict[str, dict[str, list[int]]] = {}  # by the text that stays
    for label in dict.fromkeys([*jobs, *runs]):
        own, job = runs.get(label, {}), jobs.get(label)
        key = key_of(job) if job else ""
        of_key = {seed: run for (other, seed), run in rows.items() if other == key}
        text = texts.get(getattr(getattr(job, "data", None), "corpus", "")) or _usual_text(of_key or own)
        for seed in sorted({*own, *of_key}):
            both = [each[seed] for each in (own, of_key) if seed in each]
            if any(run.text not in ("", text) for run in both):
                elsewhere.setdefault(text, {}).setdefault(label, []).append(seed)
            elif not both[0].agrees(both[-1]):  # else it was taken from these rows
                again.setdefault(label, []).append(seed)
        merged = {seed: run for each in (own, of_key) for seed, run in each.items() if run.text in ("", text)}
        stored |= {run.run: run for run in of_key.values()}
        if merged or record:
            runs[label] = {seed: merged[seed] for seed in sorted(merged)}
    notes = [
        f"left out, trained on another text than the one with sha256 {text[:SHORT]}: {_listed(seeds)}"
        for text, seeds in elsewhere.items()
    ]
    if again:
        notes.append(f"made again, while the runs that come with the question stay: {_listed(again)}")
    if not (record or notes or any(runs.values())):
        return None
    failed = still_failed(record.failed, runs) if record else {}
    most = max([record.seeds if record else 0, *(seed + 1 for cells in runs.values() for seed in cells)])
    provenance = record.provenance if record else {"hosts": _hosts(stored.values())}
    return Findings(question.name, scale, most, runs, failed, provenance, tuple(notes))


def _usual_text(runs: Mapping[int, Observed]) -> str:
    """The text that most of these runs were trained on; "" if none says it."""
    counts = Counter(run.text for run in runs.values() if run.text)
    return counts.most_common(1)[0][0] if counts else ""


def _listed(seeds: Mapping[str, list[int]]) -> str:
    return "; ".join(
        f"seed{'s' if len(each) > 1 else ''} {', '.join(map(str, each))} of '{label}'" for label, each in seeds.items()
    )


def still_failed(
    failed: Mapping[str, Mapping[int, str]], runs: Mapping[str, Mapping[int, Observed]]
) -> dict[str, dict[int, str]]:
    """The failures that no run has replaced."""
    left = {
        label: {seed: why for seed, why in seeds.items() if seed not in runs.get(label, {})}
        for label, seeds in failed.items()
    }
    return {label: seeds for label, seeds in left.items() if seeds}


def _hosts(runs: Iterable[Observed]) -> list[dict[str, Any]]:
    """Each kind of host with its number of runs, for the runs that name one."""
    counts = Counter(json.dumps(dict(run.host), sort_keys=True) for run in runs if run.host)
    return [json.loads(kind) | {"runs": count} for kind, count in sorted(counts.items())]
