"""From a question to its findings: every run is trained once, whatever interrupts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.findings import (
    RESULTS,
    Findings,
    RecordFile,
    path_of,
    recorded_runs,
    still_failed,
    write_findings,
)
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

Cell = tuple[str, int]  # a variation's label and a seed
Recorded = tuple[Observed, Findings]  # a run, and the record that holds it
T = TypeVar("T")


@dataclass(frozen=True)
class SweepProgress:
    """The state of an experiment: the run of every variation and seed, the jobs, and the sweep over missing runs.

    `jobs` holds all runs by name; the sweep names those that were missing when it began.
    """

    cells: Mapping[Cell, str]
    jobs: Jobs
    sweep: Sweep


def work_nowhere(jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep:
    """Train nothing: unsettled runs stay waiting, and the findings lack them."""
    store = RunStore(out)

    def settled(job: Job) -> bool:
        try:
            return store.settled(job)
        except InputError:
            return False

    return Sweep(waiting=[name for name, job in jobs.items() if not settled(job)])


BACKENDS: dict[str, SweepBackend] = {"local": work_locally, "ray": work_on_ray, "none": work_nowhere}


def backend_named(name: str) -> SweepBackend:
    """The backend of that name. Raises `InputError` for an unknown one."""
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
    also: Sequence[Question] = (),
    compiled: bool = False,
    watch: Callable[[SweepProgress], None] = lambda progress: None,
) -> Findings:
    """Train the runs of a question that do not exist yet, and keep its findings under `results`.

    A run's name contains the hash of what decides its numbers. So a run that is settled in `out` is not repeated, an
    interrupted one is resumed, and experiments share runs. A run that fails, or whose folder is damaged, is noted in
    the findings and does not stop the others. Before a run starts, the hash of the question's file is written into its
    folder (`registration`).

    A run that is neither in `out` nor trained now is taken from a record of this scale, of any question, if it has
    today's name and layout there. Other seeds in the question's record, and variations that the question no longer has,
    stay there; runs that would have another name today do not, but their folders do.

    Args:
        question: what to run.
        scale: the size of the models.
        seeds: the question's own unless given; a number means its first ones.
        out: the parent folder of runs.
        results: the folder of records.
        workers: runs at once.
        backend: where runs are trained.
        reuse: take runs whose folders are gone from records, and from the rows that come with the question, without
            training them.
        also: other questions, which are registered in the runs that they share with this one: their claims are fixed
            when those start, whichever question has them made. One of the same name is the whole of which `question`
            is a part, and is registered in its place.
        compiled: train under `torch.compile`, which changes numbers by rounding only; the record counts such runs.
        watch: called with the state of the sweep, several times a second.

    Raises `InputError` as `Question.recipes` does, for folders that cannot be written, for a damaged record (before
    anything runs), and if there is no run at all.
    """
    recipes = question.recipes(scale, seeds)
    seeds_wanted = {seed for _, seed in recipes}
    check_writable(results)
    record = RecordFile(results, question.name, scale)
    record.now()  # a damaged one is reported before anything runs
    nothing = InputError(f"no runs of '{question.name}' in {out}")
    if (
        backend is work_nowhere
        and not reuse
        and not (out.is_dir() or path_of(results, question.name, scale).parent.is_dir())
    ):
        raise nothing  # before the texts are encoded, whose hash the names of runs hold
    store = RunStore(out)
    runs = {cell: store.run(recipe) for cell, recipe in recipes.items()}
    names = {cell: one.path.name for cell, one in runs.items()}
    jobs = {names[cell]: recipe for cell, recipe in recipes.items()}
    kinds = {cell: type(recipe) for cell, recipe in recipes.items()}
    # Objects of their own: those of `runs` would remember a record that a worker continues.
    looked_at = {cell: Run(one.path) for cell, one in runs.items()}
    settled = {cell: kept for cell, one in looked_at.items() if (kept := _settled(one, kinds[cell])) is not None}
    runs |= {cell: looked_at[cell] for cell in settled}
    taken = _recorded(question, scale, seeds_wanted, record, store, settled, with_rows=True) if reuse else {}
    untrained = [cell for cell in recipes if cell not in settled and cell not in taken]
    missing = {names[cell]: recipes[cell].compiled() if compiled else recipes[cell] for cell in untrained}
    sweep = Sweep(waiting=[])
    if missing:
        check_writable(out)
        fresh = [runs[cell].path for cell in untrained] if backend is not work_nowhere else []
        # What a part is run of was fixed as a whole, so runs carry the whole's values.
        _register(next((other for other in also if other.name == question.name), question), fresh)
        for other in also:
            if other.name != question.name and scale not in other.not_at:
                _register(other, set(fresh) & {store.run(recipe).path for recipe in other.recipes(scale).values()})
        sweep = backend(missing, out, workers, lambda sweep: watch(SweepProgress(names, jobs, sweep)))
    left = {cell: one for cell, one in runs.items() if cell not in taken}
    seen, failed = _observe(left, kinds, settled, sweep)
    if not (seen or failed or taken or _recorded(question, scale, seeds_wanted, record, store, seen)):
        raise nothing
    with held(results, question.name, scale):  # read again, since another process may have written meanwhile
        added = taken | _recorded(question, scale, seeds_wanted, record, store, {**seen, **taken})
        findings = _merged(question, scale, runs, seen, failed, added, record.now())
        write_findings(results, findings)
    return findings


@contextmanager
def held(folder: Path, question: str, scale: str) -> Iterator[None]:
    """Hold the lock of a question's record, so that what is read inside the block is what is replaced.

    Raises `InputError` if the folder cannot be locked.
    """
    path = path_of(folder, question, scale)
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


def _register(question: Question, folders: Iterable[Path]) -> None:
    """Write the hash of the question's file into the folders of runs that have not started."""
    fresh = [folder for folder in folders if not (folder / RECORD).exists()]
    if question.registration is not None and fresh:
        note = question.registration.noted(question.values_sha256)
        for folder in fresh:
            register(folder, question.name, note)


def _settled(run: Run, kind: type[Job]) -> Observed | None:
    """What is kept of a run that needs no work. A damaged record is left to the worker, which reports it.

    A run that was observed with an older layout is observed again by a worker, not one by one in this process.
    """
    try:
        return known(run, kind)
    except InputError:
        return None


def _observe(
    runs: Mapping[Cell, Run], kinds: Mapping[Cell, type[Job]], settled: Mapping[Cell, Observed], sweep: Sweep
) -> tuple[dict[Cell, Observed], dict[Cell, str]]:
    """The observed runs, and why others failed; waiting runs are in neither."""
    seen: dict[Cell, Observed] = {}
    failed = {cell: sweep.failed[run.path.name] for cell, run in runs.items() if run.path.name in sweep.failed}
    for cell, run in runs.items():
        if cell in failed or run.path.name in sweep.waiting:
            continue
        try:
            seen[cell] = settled[cell] if cell in settled else observed(run, kinds[cell])
        except InputError as error:
            failed[cell] = str(error)
    return seen, failed


def _recorded(
    question: Question,
    scale: str,
    seeds: Iterable[int],
    record: RecordFile,
    store: RunStore,
    except_for: Container[Cell],
    with_rows: bool = False,
) -> dict[Cell, Recorded]:
    """Further runs of today's question that are in records, its own first; `with_rows`: also in its file of rows."""
    findings = record.now()
    # Under any label: a renamed variation has its seeds under the earlier name.
    recorded_seeds = {seed for seeds in findings.runs.values() for seed in seeds} if findings else set()
    jobs = question.recipes(scale, sorted({*seeds, *recorded_seeds}))
    missing = {cell: job for cell, job in jobs.items() if cell not in except_for}
    if not missing:
        return {}
    records = recorded_runs(record.folder, question.name, scale)
    if with_rows and question.records is not None:
        source = Findings(question.name, scale, 0, {})
        records = {run.run: (run, source) for run in read_rows(question.records).values()} | records
    names = {cell: store.run(job).path.name for cell, job in missing.items()}
    return {
        cell: records[names[cell]]
        for cell, job in missing.items()
        if names[cell] in records and records[names[cell]][0].layout in (job.layout, *job.older)
    }


def _merged(
    question: Question,
    scale: str,
    trained: Mapping[Cell, Run],
    seen: Mapping[Cell, Observed],
    failed: Mapping[Cell, str],
    added: Mapping[Cell, Recorded],
    before: Findings | None,
) -> Findings:
    """The new record: runs observed now, runs from records, and the variations that the question no longer has."""
    first = {run.run: run for seeds in (before.runs.values() if before else ()) for run in seeds.values()}
    again = {cell: _as_first(question.name, run, first.get(run.run)) for cell, run in seen.items()}
    cells = {**{cell: run for cell, (run, _) in added.items()}, **again}
    labels = set(question.labels)
    names = {run.run for run in cells.values()}  # a renamed variation is not kept under both labels
    others = {
        (label, seed): run
        for label, seeds in (before.runs if before else {}).items()
        for seed, run in seeds.items()
        if label not in labels and run.run not in names
    }
    cells |= others
    lost = {label: seeds for label, seeds in (before.failed if before else {}).items() if label not in labels}
    failures = {label: _by_seed(failed, label) for label, _ in failed}
    sources = _sources(added.values())
    if before and others:
        sources.append((before.provenance, len({run.run for run in others.values()})))
    return Findings(
        question.name,
        scale,
        max(seed + 1 for _, seed in (*trained, *cells)),
        {label: _by_seed(cells, label) for label in dict.fromkeys([*question.labels, *(label for label, _ in others)])},
        still_failed({**lost, **failures}, {label: _by_seed(cells, label) for label, _ in cells}),
        provenance_of((trained[cell] for cell in seen), sources),
    )


def _as_first(question: str, run: Observed, recorded: Observed | None) -> Observed:
    """A run that is in the record already, made again, keeps what the question's file was when it was first made: its
    numbers have been seen since.
    """
    if recorded is None:
        return run
    others = {name: note for name, note in run.registered.items() if name != question}
    noted = {question: recorded.registered[question]} if question in recorded.registered else {}
    return replace(run, registered={**others, **noted})


def _by_seed(cells: Mapping[Cell, T], label: str) -> dict[int, T]:
    return {seed: cells[label, seed] for seed in sorted(seed for other, seed in cells if other == label)}


def _sources(added: Iterable[Recorded]) -> list[tuple[Mapping[str, Any], int]]:
    """The provenance of each record that runs were taken from, and how many."""
    taken = {run.run: record for run, record in added}.values()
    counts = Counter(record.question for record in taken)
    return [(record.provenance, counts[record.question]) for record in {one.question: one for one in taken}.values()]


# Provenance.


def provenance_of(runs: Iterable[Run], recorded: Iterable[tuple[Mapping[str, Any], int]] = ()) -> dict[str, Any]:
    """Versions and hosts of runs, and of further ones from records (`recorded`: a record's provenance, how many).

    `versions` of the packages, all of them where runs differ. `hosts`: device, threads, system, architecture and
    whether `torch.compile` was used, with the number of runs; nothing that names a machine. A record does not say which
    of its runs was trained where: if it has several hosts and not all of its runs are taken, these have no number.
    """
    records = {run.path: _record(run) for run in runs}.values()
    hosts: dict[str, int | None] = {**Counter(_host_key(record["host"]) for record in records if "host" in record)}
    used: dict[str, set[str]] = {}
    for record in records:
        for package, version in record.get("versions", {}).items():
            used.setdefault(package, set()).add(version)
    for provenance, taken in recorded:
        for package, joined in provenance.get("versions", {}).items():
            used.setdefault(package, set()).update(joined.split(", "))
        for host, count in _host_counts(provenance.get("hosts", ()), taken).items():
            before = hosts.get(host, 0)
            hosts[host] = None if count is None or before is None else before + count
    return {
        "versions": {package: ", ".join(sorted(names)) for package, names in used.items()} or versions(),
        "hosts": [
            json.loads(host) | ({} if count is None else {"runs": count}) for host, count in sorted(hosts.items())
        ],
    }


def _host_counts(hosts: Iterable[Mapping[str, Any]], taken: int) -> dict[str, int | None]:
    """How many of the runs taken from a record each host trained, if that is known."""
    counts: dict[str, int | None] = {}
    for host in hosts:
        counts[_host_key({name: value for name, value in host.items() if name != "runs"})] = host.get("runs")
    if len(counts) == 1:
        return dict.fromkeys(counts, taken)
    numbers = [count for count in counts.values() if count is not None]
    return counts if len(numbers) == len(counts) and sum(numbers) == taken else dict.fromkeys(counts)


def _host_key(host: Mapping[str, Any]) -> str:
    return json.dumps(host, sort_keys=True)


def _record(run: Run) -> Mapping[str, Any]:
    """A run's record; empty if it is damaged, which the run's failure reports."""
    try:
        return run.record
    except InputError:
        return {}
