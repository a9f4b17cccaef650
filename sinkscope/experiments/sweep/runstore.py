"""Where runs lie, by what decides their numbers: two experiments that ask for the same run share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.experiments.observing.settled import OBSERVED
from sinkscope.experiments.sweep.jobs import Job, kind_of
from sinkscope.training import LOG, Run, read_record, read_rows


@dataclass
class RunStore:
    """A folder of runs, which several processes and machines may share. Fingerprints are computed once per text."""

    path: Path
    _fingerprints: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, job: Job) -> Run:
        """The run of a job, whether it exists or not. Prepares a recipe's corpus where that was not done yet."""
        return Run(self.path / job.folder(self._fingerprint(job)))

    def settled(self, run: Run) -> bool:
        """Whether a run is finished or diverged, and what is known of it is written down."""
        record = read_record(run.path)
        done = record is not None and record["status"] in ("finished", "diverged")
        return done and (run.path / OBSERVED).is_file()

    def progress(self, run: Run) -> dict[str, Any]:
        """The newest row of a run's log; empty before there is one."""
        try:
            rows = read_rows(run.path / LOG)
        except InputError:
            return {}
        return {name: value for row in rows[-12:] for name, value in row.items()}

    def _fingerprint(self, job: Job) -> dict[str, Any]:
        kind = kind_of(job)
        text = kind.reads(job)
        if text not in self._fingerprints:
            self._fingerprints[text] = kind.fingerprint(job)
        return self._fingerprints[text]
