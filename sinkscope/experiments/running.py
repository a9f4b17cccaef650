"""From a question to its findings: every run once, whatever interrupts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from sinkscope.errors import InputError, unknown
from sinkscope.experiments import findings as kept
from sinkscope.experiments.findings import RESULTS, Findings, recorded_runs, still_failed
from sinkscope.experiments.jobs import Job
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import Question, Seeds
from sinkscope.experiments.registration import register
from sinkscope.experiments.rows import read_rows
from sinkscope.experiments.sweep.on_ray import work_on_ray
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.store import RunStore, known, observed
from sinkscope.experiments.sweep.sweeping import Jobs, Sweep, SweepBackend, Watch
from sinkscope.files import check_writable
from sinkscope.training import RECORD, Run, versions


def provenance_of(runs: Iterable[Run], recorded: Iterable[tuple[Mapping[str, Any], int]] = ()) -> dict[str, Any]:
    """What made the runs, and further ones that were taken from records (`recorded`: its provenance, and how many).

    `versions` of the packages: where runs differ, all that there were. `hosts`: device, threads, system,
    architecture and whether `torch.compile` was used, each kind with the number of its runs; nothing that names a
    machine. A record does not say which of its runs was made where: when it has several kinds of host and not all its
    runs are taken, these stand without a number.
    """
    records = {run.path: _record(run) for run in runs}.values()
    kinds: dict[str, int | None] = {**Counter(_kind(record["host"]) for record in records if "host" in record)}
    used: dict[str, set[str]] = {}
    for record in records:
        for package, version in record.get("versions", {}).items():
            used.setdefault(package, set()).add(version)
    for provenance, taken in recorded:
        for package, found in provenance.get("versions", {}).items():
            used.setdefault(package, set()).update(found.split(", "))
        for kind, count in _counts(provenance.get("hosts", ()), taken).items():
            before = kinds.get(kind, 0)
            kinds[kind] = None if count is None or before is None else before + count
    return {
        "versions": {package: ", ".join(sorted(found)) for package, found in used.items()} or versions(),
        "hosts": [
            json.loads(kind) | ({} if count is None else {"runs": count}) for kind, count in sorted(kinds.items())
        ],
    }


def _counts(hosts: Iterable[Mapping[str, Any]], taken: int) -> dict[str, int | None]:
    """How many of the runs taken from a record each kind of host made, as far as that is known."""
    counts: dict[str, int | None] = {}
    for host in hosts:
        counts[_kind({name: value for name, value in host.items() if name != "runs"})] = host.get("runs")
    if len(counts) == 1:
        return dict.fromkeys(counts, taken)
    known = [count for count in counts.values() if count is not None]
    return counts if len(known) == len(counts) and sum(known) == taken else dict.fromkeys(counts)


def _kind(host: Mapping[str, Any]) -> str:
    return json.dumps(host, sort_keys=True)


def _record(run: Run) -> Mapping[str, Any]:
    try:
        return run.record
    except InputError:
        return {}  # damaged, which the run's failure tells


Cell = tuple[str, int]  # a variation's label and a seed
Recorded = tuple[Observed, Findings]  # a run, and the record that it stands in
T = TypeVar("T")


@dataclass(frozen=True)
class SweepProgress:
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
            return store.settled(job)
        except InputError:
            return False

    return Sweep(waiting=[name for name, job in jobs.items() if not settled(job)])


BACKENDS: dict[str, SweepBackend] = {"local": work_locally, "ray": work_on_ray, "none": work_nowhere}


def backend_named(name: str) -> SweepBackend:
    """The backend of a name. Raises `InputError` for an unknown one."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    return BACKENDS[name]


def run(
    question: Question,
    *,
    scale: str = "nano",
    seeds: Seeds | None = None,
    out: Path = Path("runs"),
    results: Path = RESULTS,
    workers: int = 1,
    backend: SweepBackend = work_locally,
    reuse: bool = False,
    compiled: bool = False,
    watch: Callable[[SweepProgress], None] = lambda progress: None,
) -> Findings:
    """Run what of a question has not been run, and keep what was found under `results`.

    Runs are named by what decides their numbers: one that is settled in `out` is not repeated, one that was interrupted
    is resumed, and a run that two experiments share is made once. A run that fails, or whose folder is damaged, is
    noted in the findings and does not stop the others.

    A run that is neither in `out` nor made now, but stands in a record of this scale, of whichever question, under the
    name that it would have today and read as it would be today, is taken from there. With `reuse` such a run is not
    made, although its folder is gone, and the rows that come with the question are taken too.

    What else stood in the question's record stays there: other seeds, and variations that are not asked any more, which
    nothing judges. Runs that would have another name today, since the question, the code or the text changed, do not;
    their folders do. `seeds`: those of the question; or how many of its first ones, or which, are run now.
    `compiled`: trainings on text run under `torch.compile`, which changes numbers by rounding alone; the record counts
    such runs.

    Raises `InputError` as `Question.recipes` does, for folders that cannot be written, for a damaged record (before
    anything runs), and where there is no run at all.
    """
    recipes = question.recipes(scale, seeds)
    wanted = {seed for _, seed in recipes}
    check_writable(results)
    record = kept.RecordFile(results, question.name, scale)
    record.now()  # a damaged one is reported before anything runs
    store = RunStore(out)
    made = {cell: store.run(recipe) for cell, recipe in recipes.items()}
    cells = {cell: one.path.name for cell, one in made.items()}
    jobs = {cells[cell]: recipe for cell, recipe in recipes.items()}
    # By other objects than those of `made`, which would remember a record that a worker goes on with.
    looked = {cell: Run(one.path) for cell, one in made.items()}
    kinds = {cell: type(recipe) for cell, recipe in recipes.items()}
    settled = {cell: read for cell, one in looked.items() if (read := _settled(one, kinds[cell])) is not None}
    made |= {cell: looked[cell] for cell in settled}
    taken = _recorded(question, scale, wanted, record, store, settled, rows=True) if reuse else {}
    untrained = [cell for cell in recipes if cell not in settled and cell not in taken]
    missing = {cells[cell]: recipes[cell].compiled() if compiled else recipes[cell] for cell in untrained}
    sweep = Sweep(waiting=[])
    if missing:
        check_writable(out)
        _register(question, [made[cell].path for cell in untrained])
        sweep = backend(missing, out, workers, lambda sweep: watch(SweepProgress(cells, jobs, sweep)))
    left = {cell: one for cell, one in made.items() if cell not in taken}
    runs, failed = _read(left, kinds, settled, sweep)
    if not (runs or failed or taken or _recorded(question, scale, wanted, record, store, runs)):
        raise InputError(f"no runs of '{question.name}' in {out}")
    with held(results, question.name, scale):  # read again, since another process may have written meanwhile
        added = taken | _recorded(question, scale, wanted, record, store, {**runs, **taken})
        found = _found(question, scale, made, runs, failed, added, record.now())
        kept.write_findings(results, found)
    return found


@contextmanager
def held(folder: Path, question: str, scale: str) -> Iterator[None]:
    """While no other process writes the record of a question: what is read inside is what is replaced.

    Raises `InputError` where there cannot be a lock.
    """
    path = kept.path_of(folder, question, scale)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.parent / f".{question}.lock")
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise InputError(f"cannot write {path.parent}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def _found(
    question: Question,
    scale: str,
    made: Mapping[Cell, Run],
    runs: Mapping[Cell, Observed],
    failed: Mapping[Cell, str],
    added: Mapping[Cell, Recorded],
    before: Findings | None,
) -> Findings:
    """What was made, what was not, what was taken from records, and the variations that were not asked for."""
    every = {**{cell: one for cell, (one, _) in added.items()}, **runs}
    asked = set(question.labels)
    named = {run.run for run in every.values()}  # a variation that has another name now does not stand there twice
    there = before.runs if before else {}
    others = {
        (label, seed): run
        for label, seeds in there.items()
        for seed, run in seeds.items()
        if label not in asked and run.run not in named
    }
    every |= others
    lost = {label: seeds for label, seeds in (before.failed if before else {}).items() if label not in asked}
    noted = {label: _of_label(failed, label) for label, _ in failed}
    sources = _sources(added.values())
    if before and others:
        sources.append((before.provenance, len({run.run for run in others.values()})))
    return Findings(
        question.name,
        scale,
        max(seed + 1 for _, seed in (*made, *every)),
        {label: _of_label(every, label) for label in dict.fromkeys([*question.labels, *(one for one, _ in others)])},
        still_failed({**lost, **noted}, {label: _of_label(every, label) for label, _ in every}),
        provenance_of((made[cell] for cell in runs), sources),
    )


def _register(question: Question, folders: Iterable[Path]) -> None:
    """Write the hash of the question's file into the folders of runs that have not started."""
    fresh = [folder for folder in folders if not (folder / RECORD).exists()]
    if question.registration is not None and fresh:
        note = question.registration.noted()
        for folder in fresh:
            register(folder, question.name, note)


def _settled(run: Run, kind: type[Job]) -> Observed | None:
    """What is kept of a run of which nothing is to be done. A damaged record is for the worker to complain of: the
    others go on.

    A run that was observed in an older way is observed anew by a worker, not by this process one after the other.
    """
    try:
        return known(run, kind)
    except InputError:
        return None


def _read(
    made: Mapping[Cell, Run], kinds: Mapping[Cell, type[Job]], settled: Mapping[Cell, Observed], sweep: Sweep
) -> tuple[dict[Cell, Observed], dict[Cell, str]]:
    """What was observed, and why it was not; neither for runs that still wait. What was `settled` before still is."""
    runs: dict[Cell, Observed] = {}
    failed = {cell: sweep.failed[run.path.name] for cell, run in made.items() if run.path.name in sweep.failed}
    for cell, run in made.items():
        if cell in failed or run.path.name in sweep.waiting:
            continue
        try:
            runs[cell] = settled[cell] if cell in settled else observed(run, kinds[cell])
        except InputError as error:
            failed[cell] = str(error)
    return runs, failed


def _recorded(
    question: Question,
    scale: str,
    wanted: Iterable[int],
    record: kept.RecordFile,
    store: RunStore,
    besides: Container[Cell],
    rows: bool = False,
) -> dict[Cell, Recorded]:
    """Further runs of the question as it is today that stand in records, its own first; with `rows` its rows too."""
    own = record.now()
    # Whatever its label: a variation that has another name now has its seeds under the earlier one.
    known = {seed for seeds in own.runs.values() for seed in seeds} if own else set()
    jobs = question.recipes(scale, sorted({*wanted, *known}))
    missing = {cell: job for cell, job in jobs.items() if cell not in besides}
    if not missing:
        return {}
    records = recorded_runs(record.folder, question.name, scale)
    if rows and question.records is not None:
        source = Findings(question.name, scale, 0, {})
        records = {run.run: (run, source) for run in read_rows(question.records).values()} | records
    names = {cell: store.run(job).path.name for cell, job in missing.items()}
    return {
        cell: records[names[cell]]
        for cell, job in missing.items()
        if names[cell] in records and records[names[cell]][0].layout in (job.layout, *job.older)
    }


def _sources(added: Iterable[Recorded]) -> list[tuple[Mapping[str, Any], int]]:
    """The provenance of each record that runs were taken from, and how many."""
    taken = {run.run: record for run, record in added}.values()
    counts = Counter(record.question for record in taken)
    return [(record.provenance, counts[record.question]) for record in {one.question: one for one in taken}.values()]


def _of_label(cells: Mapping[Cell, T], label: str, besides: Container[Cell] = ()) -> dict[int, T]:
    seeds = sorted(seed for other, seed in cells if other == label and (label, seed) not in besides)
    return {seed: cells[label, seed] for seed in seeds}
