"""From a question to its findings: every run once, whatever interrupts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from sinkscope.errors import InputError
from sinkscope.experiments import findings as kept
from sinkscope.experiments.findings import Findings
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.observing.settled import is_observed, observed
from sinkscope.experiments.provenance import provenance_of
from sinkscope.experiments.question import Question
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.runstore import RunStore
from sinkscope.experiments.sweep.sweeping import Jobs, Sweep, Watch
from sinkscope.files import check_writable
from sinkscope.training import Run

Cell = tuple[str, int]  # a variation's label and a seed


@dataclass(frozen=True)
class Progress:
    """Where an experiment stands: the run of every variation and seed, what makes them, and the sweep over the missing.

    `jobs` hold all runs, by name; the sweep names those that were missing when it began.
    """

    cells: Mapping[Cell, str]
    jobs: Jobs
    sweep: Sweep


@runtime_checkable
class Backend(Protocol):
    """Does jobs (by the names of their runs' folders) in a folder and says where it stands.

    What the returned sweep has waiting was not made, and is left out of the findings.
    """

    def __call__(self, jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep: ...


def nobody(progress: Progress) -> None:
    """Watch nothing."""


def run(
    question: Question,
    *,
    scale: str = "nano",
    seeds: int = 3,
    out: Path = Path("runs"),
    results: Path = Path("results/experiments"),
    workers: int = 1,
    backend: Backend = work_locally,
    watch: Callable[[Progress], None] = nobody,
) -> Findings:
    """Run what of a question has not been run, and keep what was found under `results`.

    Runs are named by what decides their numbers: one that is settled in `out` is not repeated, one that was interrupted
    is resumed, and a run that two experiments share is made once. A run that fails, or whose folder is damaged, is
    noted in the findings and does not stop the others. Raises `InputError` as `Question.recipes` does, and for folders
    that cannot be written.
    """
    recipes = question.recipes(scale, seeds)
    check_writable(results)
    store = RunStore(out)
    made = {cell: store.run(recipe) for cell, recipe in recipes.items()}
    cells = {cell: one.path.name for cell, one in made.items()}
    jobs = {cells[cell]: recipe for cell, recipe in recipes.items()}
    missing = {cells[cell]: recipes[cell] for cell, one in made.items() if not _settled(store, one)}
    sweep = Sweep(waiting=[])
    if missing:
        check_writable(out)
        sweep = backend(missing, out, workers, lambda sweep: watch(Progress(cells, jobs, sweep)))
    runs: dict[str, dict[int, Observed]] = {variation.label: {} for variation in question.variations}
    failed: dict[str, dict[int, str]] = {}
    for (label, seed), one in made.items():
        if one.path.name in sweep.waiting:
            continue
        try:
            runs[label][seed] = _read(one, sweep)
        except InputError as error:
            failed.setdefault(label, {})[seed] = str(error)
    found = Findings(question.name, scale, seeds, runs, failed, provenance_of(made.values()))
    kept.write(results, found)
    return found


def _settled(store: RunStore, run: Run) -> bool:
    """Whether nothing is to be done. A damaged record is for the worker to complain of: the others go on.

    A run that was observed in an older way is observed anew by a worker, not by this process one after the other.
    """
    try:
        return store.settled(run) and is_observed(run)
    except InputError:
        return False


def _read(run: Run, sweep: Sweep) -> Observed:
    if run.path.name in sweep.failed:
        raise InputError(sweep.failed[run.path.name])
    return observed(run)
