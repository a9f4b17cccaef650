"""From a question to its findings: every run once, whatever interrupts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sinkscope.errors import InputError, unknown
from sinkscope.experiments import aside
from sinkscope.experiments import findings as kept
from sinkscope.experiments.findings import Findings, recorded
from sinkscope.experiments.jobs import Job
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.provenance import provenance_of
from sinkscope.experiments.question import Question
from sinkscope.experiments.sweep.on_ray import work_on_ray
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.store import RunStore, known, observed
from sinkscope.experiments.sweep.sweeping import Backend, Jobs, Sweep, Watch
from sinkscope.files import check_writable
from sinkscope.training import Run

Cell = tuple[str, int]  # a variation's label and a seed
Recorded = tuple[Observed, Findings]  # a run, and the record that it stands in
T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """Where an experiment stands: the run of every variation and seed, what makes them, and the sweep over the missing.

    `jobs` hold all runs, by name; the sweep names those that were missing when it began.
    """

    cells: Mapping[Cell, str]
    jobs: Jobs
    sweep: Sweep


def work_nowhere(jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep:
    """Makes nothing. What is not settled stays waiting, and is left out of the findings."""
    store = RunStore(out)

    def settled(job: Job) -> bool:
        try:
            return store.settled(store.run(job))
        except InputError:
            return False

    return Sweep(waiting=[name for name, job in jobs.items() if not settled(job)])


BACKENDS: dict[str, Backend] = {"local": work_locally, "ray": work_on_ray, "none": work_nowhere}


def backend_named(name: str) -> Backend:
    """The backend of a name. Raises `InputError` for an unknown one."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    return BACKENDS[name]


def run(
    question: Question,
    *,
    scale: str = "nano",
    seeds: int = 3,
    out: Path = Path("runs"),
    results: Path = Path("results/experiments"),
    workers: int = 1,
    backend: Backend = work_locally,
    reuse: bool = False,
    compiled: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Findings:
    """Run what of a question has not been run, and keep what was found under `results`.

    Runs are named by what decides their numbers: one that is settled in `out` is not repeated, one that was interrupted
    is resumed, and a run that two experiments share is made once. A run that fails, or whose folder is damaged, is
    noted in the findings and does not stop the others.

    A run that is neither in `out` nor made now, but stands in a record of this scale, of whichever question, under the
    name that it would have today and read as it would be today, is taken from there; of the question's own record also
    one of a seed beyond `seeds`. With `reuse` such a run is not made, although its folder is gone.

    What else stood in the question's record is set aside (`aside.replace`). `compiled`: trainings on text run under
    `torch.compile`, which changes numbers by rounding alone; the record counts such runs.

    Raises `InputError` as `Question.recipes` does, for folders that cannot be written, for a damaged record (before
    anything runs), and where there is no run at all.
    """
    recipes = question.recipes(scale, seeds)
    check_writable(results)
    record = kept.Reading(results, question.name, scale)
    record.now()  # a damaged one is reported before anything runs
    store = RunStore(out)
    made = {cell: store.run(recipe) for cell, recipe in recipes.items()}
    cells = {cell: one.path.name for cell, one in made.items()}
    jobs = {cells[cell]: recipe for cell, recipe in recipes.items()}
    # By other objects than those of `made`, which would remember a record that a worker goes on with.
    looked = {cell: Run(one.path) for cell, one in made.items()}
    settled = {cell: read for cell, one in looked.items() if (read := _settled(one)) is not None}
    made |= {cell: looked[cell] for cell in settled}
    taken = _known(question, scale, seeds, record, store, settled) if reuse else {}
    untrained = [cell for cell in recipes if cell not in settled and cell not in taken]
    missing = {cells[cell]: recipes[cell].compiled() if compiled else recipes[cell] for cell in untrained}
    sweep = Sweep(waiting=[])
    if missing:
        check_writable(out)
        sweep = backend(missing, out, workers, lambda sweep: watch(Progress(cells, jobs, sweep)))
    runs, failed = _read({cell: one for cell, one in made.items() if cell not in taken}, settled, sweep)
    if not (runs or failed or taken or _known(question, scale, seeds, record, store, runs)):
        raise InputError(f"no runs of '{question.name}' in {out}")
    with aside.held(results, question.name, scale):  # read again, since another process may have written meanwhile
        added = taken | _known(question, scale, seeds, record, store, runs)
        found = _found(question, scale, seeds, made, runs, failed, added)
        aside.replace(results, record.now(), found)
    return found


def _found(
    question: Question,
    scale: str,
    seeds: int,
    made: Mapping[Cell, Run],
    runs: Mapping[Cell, Observed],
    failed: Mapping[Cell, str],
    added: Mapping[Cell, Recorded],
) -> Findings:
    """What was made, what was not, and what was taken from records."""
    every = {**runs, **{cell: one for cell, (one, _) in added.items()}}
    return Findings(
        question.name,
        scale,
        max([seeds, *(seed + 1 for _, seed in every)]),
        {variation.label: _of_label(every, variation.label) for variation in question.variations},
        {label: _of_label(failed, label, besides=every) for label, seed in failed if (label, seed) not in every},
        provenance_of((made[cell] for cell in runs), _sources(added.values())),
    )


def _settled(run: Run) -> Observed | None:
    """What is kept of a run of which nothing is to be done. A damaged record is for the worker to complain of: the
    others go on.

    A run that was observed in an older way is observed anew by a worker, not by this process one after the other.
    """
    try:
        return known(run)
    except InputError:
        return None


def _read(
    made: Mapping[Cell, Run], settled: Mapping[Cell, Observed], sweep: Sweep
) -> tuple[dict[Cell, Observed], dict[Cell, str]]:
    """What was observed, and why it was not; neither for runs that still wait. What was `settled` before still is."""
    runs: dict[Cell, Observed] = {}
    failed = {cell: sweep.failed[run.path.name] for cell, run in made.items() if run.path.name in sweep.failed}
    for cell, run in made.items():
        if cell in failed or run.path.name in sweep.waiting:
            continue
        try:
            runs[cell] = settled[cell] if cell in settled else observed(run)
        except InputError as error:
            failed[cell] = str(error)
    return runs, failed


def _known(
    question: Question, scale: str, seeds: int, record: kept.Reading, store: RunStore, besides: Container[Cell]
) -> dict[Cell, Recorded]:
    """The further runs of the question as it is today that stand in records, its own first."""
    own = record.now()
    seeds = max([seeds, *(1 + seed for runs in own.runs.values() for seed in runs)]) if own else seeds
    cells = {(variation.label, seed) for variation in question.variations for seed in range(seeds)}
    if all(cell in besides for cell in cells):
        return {}
    records = recorded(record.folder, question.name, scale)
    names = {cell: (job, store.run(job).path.name) for cell, job in question.recipes(scale, seeds).items()}
    return {
        cell: records[name]
        for cell, (job, name) in names.items()
        if cell not in besides and name in records and records[name][0].layout in (job.layout, *job.older)
    }


def _sources(added: Iterable[Recorded]) -> list[tuple[Mapping[str, Any], int]]:
    """The provenance of each record that runs were taken from, and how many."""
    taken = {run.run: record for run, record in added}.values()
    counts = Counter(record.question for record in taken)
    return [(record.provenance, counts[record.question]) for record in {one.question: one for one in taken}.values()]


def _of_label(cells: Mapping[Cell, T], label: str, besides: Container[Cell] = ()) -> dict[int, T]:
    seeds = sorted(seed for other, seed in cells if other == label and (label, seed) not in besides)
    return {seed: cells[label, seed] for seed in seeds}
