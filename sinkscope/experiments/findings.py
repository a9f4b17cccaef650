"""What an experiment found: its runs, its verdicts, its provenance, as one JSON record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.claims import Evidence, Verdict
from sinkscope.errors import InputError
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import Question
from sinkscope.files import write_json
from sinkscope.training.record import versions


@dataclass(frozen=True)
class Findings:
    """The runs of a question at a scale, by label and seed. `failed`: why runs are missing, by label and seed."""

    question: str
    scale: str
    seeds: int
    runs: Mapping[str, Mapping[int, Observed]]
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def by_seed(self) -> dict[int, dict[str, Observed]]:
        """The runs of every seed that has all of them."""
        labels = list(self.runs)
        complete = [seed for seed in range(self.seeds) if all(seed in self.runs[label] for label in labels)]
        return {seed: {label: self.runs[label][seed] for label in labels} for seed in complete}

    @property
    def seconds(self) -> float:
        """What the runs cost together."""
        return sum(run.seconds for seeds in self.runs.values() for run in seeds.values())

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
            failed = {
                label: {int(seed): str(why) for seed, why in seeds.items()} for label, seeds in data["failed"].items()
            }
            return cls(data["question"], data["scale"], int(data["seeds"]), runs, failed, data["provenance"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"this is no record of an experiment: {type(error).__name__}: {error}") from error


def verdicts(question: Question, findings: Findings | None, scale: str = "nano") -> list[Verdict]:
    """A verdict on each claim of a question, from what was found; "not run at this scale" without it."""
    if findings is None:
        reason = question.not_at.get(scale, "no runs")  # type: ignore[call-overload]
        return [assertion.claim.not_run(reason) for assertion in question.assertions]
    seeds = findings.by_seed()
    return [
        assertion.claim.judge(
            [Evidence(f"seed {seed}", assertion.effect(runs)) for seed, runs in seeds.items()],
            "" if seeds else "no seed has all of its runs",
        )
        for assertion in question.assertions
    ]


def path_of(folder: Path, question: str, scale: str) -> Path:
    """Where the findings of a question at a scale are kept."""
    return folder / scale / f"{question}.json"


def write(folder: Path, findings: Findings) -> Path:
    """Keep findings, atomically; return where."""
    path = path_of(folder, findings.question, findings.scale)
    write_json(path, findings.to_dict())
    return path


def read(folder: Path, question: str, scale: str) -> Findings | None:
    """The findings of a question at a scale, None where there are none. Raises `InputError` for a damaged file."""
    path = path_of(folder, question, scale)
    if not path.is_file():
        return None
    try:
        return Findings.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, InputError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def provenance() -> dict[str, Any]:
    """What versions made the findings."""
    return {"versions": versions()}
