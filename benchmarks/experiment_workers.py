"""What two workers save: a sweep of eight runs of nano's shape.

Run: python -m benchmarks.experiment_workers [--save] [--tiny]

Whole sweeps from the first process to the last observation, on the first two processors of the machine: two workers of
one thread each, against one worker of two threads. `--tiny` makes few and short runs, to see that everything works; its
numbers mean nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.experiment_runner import RUNS, SHORT, TINY, fresh, question
from benchmarks.sides import Figure, at_most, in_turns, report
from sinkscope.experiments import Question
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.store import RunStore
from sinkscope.experiments.sweep.sweeping import Jobs

STEPS, ROUNDS = (2, 1) if TINY else (60, 2)


def jobs_of(asked: Question, out: Path) -> Jobs:
    return {RunStore(out).run(job).path.name: job for job in asked.recipes("nano", 1).values()}


def swept(asked: Question, workers: int) -> Callable[[Path], None]:
    def sweep(out: Path) -> None:
        ended = work_locally(jobs_of(asked, out), out, workers, lambda sweep: None)
        if len(ended.done) != RUNS:
            raise SystemExit(f"runs failed: {ended.failed}")

    return sweep


def two_workers(root: Path) -> Figure:
    asked = question(RUNS, SHORT | {"steps": STEPS})
    jobs_of(asked, root)  # the corpus is encoded once
    seconds = in_turns(
        {"two": fresh(root / "two", swept(asked, 2)), "one": fresh(root / "one", swept(asked, 1))}, ROUNDS
    )
    return at_most("8 runs: two workers of one thread / one of two", seconds["two"], seconds["one"], 0.9)


def main() -> None:
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory(prefix="sinkscope-benchmark-") as scratch:
        report("experiment_workers", [two_workers(Path(scratch))])


if __name__ == "__main__":
    main()
