"""What an experiment found: its runs and their provenance, as one JSON record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.experiments.observed import NewerRecord, Observed
from sinkscope.files import write_json


@dataclass(frozen=True)
class Findings:
    """The runs of a question at a scale, by label and seed. `failed`: why runs are missing, by label and seed."""

    question: str
    scale: str
    seeds: int
    runs: Mapping[str, Mapping[int, Observed]]
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def of_seed(self, seed: int) -> dict[str, Observed]:
        """The runs of a seed, as far as there are any."""
        return {label: seeds[seed] for label, seeds in self.runs.items() if seed in seeds}

    @property
    def seconds(self) -> float:
        """What the runs cost together; one that stands under two labels counts once."""
        return math.fsum({run.run: run.seconds for seeds in self.runs.values() for run in seeds.values()}.values())

    @property
    def cost(self) -> dict[str, int | float]:
        """How many runs there are, their seconds together, and a run's on average."""
        count = len({run.run for seeds in self.runs.values() for run in seeds.values()})
        return {
            "runs": count,
            "seconds": round(self.seconds, 1),
            "seconds_per_run": round(self.seconds / max(1, count), 1),
        }

    def same(self, other: Findings) -> bool:
        """Whether all is the same, what is unknown included."""
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
            for label, seeds in runs.items():
                for seed, run in seeds.items():
                    if run.seed != seed:
                        raise InputError(f"'{label}', seed {seed}: this is the run of seed {run.seed}, {run.run}")
            failed = {
                label: {int(seed): str(why) for seed, why in seeds.items()} for label, seeds in data["failed"].items()
            }
            return cls(data["question"], data["scale"], int(data["seeds"]), runs, failed, dict(data["provenance"]))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"this is no record of an experiment: {type(error).__name__}: {error}") from error


def path_of(folder: Path, question: str, scale: str) -> Path:
    """Where the findings of a question at a scale are kept. Raises `InputError` for a name that is none of a file."""
    if not question or Path(question).name != question:
        raise InputError(
            f"experiment '{question}': its name is a file's name too, which must hold no '/' and not be empty"
        )
    return folder / scale / f"{question}.json"


def write(folder: Path, findings: Findings) -> Path:
    """Keep findings, atomically; return where."""
    path = path_of(folder, findings.question, findings.scale)
    write_json(path, findings.to_dict())
    return path


def read(folder: Path, question: str, scale: str) -> Findings | None:
    """The findings of a question at a scale, None where there are none. Raises `InputError` for a damaged file."""
    path = path_of(folder, question, scale)
    if not path.exists():
        return None
    try:
        found = Findings.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except NewerRecord as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except (OSError, ValueError, RecursionError, InputError) as error:
        raise InputError(f"cannot read {path}: {error}; move it away, and `experiment run` makes it again") from error
    if (found.question, found.scale) != (question, scale):
        raise InputError(f"cannot read {path}: it holds '{found.question}' at scale '{found.scale}'; move it there")
    return found


@dataclass
class Reading:
    """The findings of a question at a scale as they are whenever asked; read again where the file is another one.

    Files are replaced whole, so that one of the same inode, size and time holds the same. What is read is shared: only
    read.
    """

    folder: Path
    question: str
    scale: str
    _read: tuple[tuple[int, int, int], Findings | None] | None = None

    def now(self) -> Findings | None:
        """As `read`."""
        try:
            there = path_of(self.folder, self.question, self.scale).stat()
        except OSError:
            return read(self.folder, self.question, self.scale)
        state = there.st_ino, there.st_size, there.st_mtime_ns
        if self._read is None or self._read[0] != state:
            self._read = state, read(self.folder, self.question, self.scale)
        return self._read[1]


def recorded(folder: Path, question: str, scale: str) -> dict[str, tuple[Observed, Findings]]:
    """All runs in the records of a scale, by name, each with its record: these need not be made again.

    A run that stands in several records is taken from the question's own where that has it. A damaged record of another
    question is passed over: that question's own commands report it.
    """
    path = path_of(folder, question, scale)
    names = sorted((other.stem for other in path.parent.glob("*.json")), key=lambda name: (name != question, name))
    runs: dict[str, tuple[Observed, Findings]] = {}
    for name in names:
        try:
            record = read(folder, name, scale)
        except InputError:
            if name == question:
                raise
            continue
        if record is None:  # removed meanwhile
            continue
        for run in (run for seeds in record.runs.values() for run in seeds.values()):
            runs.setdefault(run.run, (run, record))
    return runs
