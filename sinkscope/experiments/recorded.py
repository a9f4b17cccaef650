"""Runs that stand in records, whichever question they were made for: they need not be made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.experiments import findings
from sinkscope.experiments.findings import Findings
from sinkscope.experiments.job import Job
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.sweep.jobs import kind_of


@dataclass(frozen=True)
class Recorded:
    """A run, and the record that it stands in."""

    run: Observed
    record: Findings

    def is_of(self, job: Job) -> bool:
        """Whether it was read in the way in which a run of this job would be read today."""
        return self.run.layout == kind_of(job).layout


def recorded(folder: Path, question: str, scale: str) -> Mapping[str, Recorded]:
    """All runs in the records of a scale, by name; one in several is the question's own where that has it.

    A damaged record of another question is passed over: its own commands tell of it.
    """
    path = findings.path_of(folder, question, scale)
    names = sorted((other.stem for other in path.parent.glob("*.json")), key=lambda name: (name != question, name))
    runs: dict[str, Recorded] = {}
    for name in names:
        try:
            record = findings.read(folder, name, scale)
        except InputError:
            if name == question:
                raise
            continue
        if record is None:  # removed meanwhile
            continue
        for run in (run for seeds in record.runs.values() for run in seeds.values()):
            runs.setdefault(run.run, Recorded(run, record))
    return runs
