"""The work of a queue: one missing run after another, until the time is up or nothing is missing."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from sinkscope.errors import InputError
from sinkscope.experiments import aside
from sinkscope.experiments import findings as kept
from sinkscope.experiments.findings import Findings
from sinkscope.experiments.jobs import Job
from sinkscope.experiments.pooled import SHIPPED, Key, Known, known
from sinkscope.experiments.provenance import provenance_of
from sinkscope.experiments.question import Question
from sinkscope.experiments.questions import QUESTIONS
from sinkscope.experiments.queue.order import ORDER, Wanted
from sinkscope.experiments.queue.plan import Planned, plan, require_hours, require_whole, stored_by
from sinkscope.experiments.sweep.pool import Pool, threads_each
from sinkscope.experiments.sweep.store import RunStore, observed
from sinkscope.experiments.sweep.sweeping import AGAIN, Executor, require_workers
from sinkscope.experiments.sweep.worker import BUSY, SETTLED
from sinkscope.files import check_room, check_writable
from sinkscope.training import Run, require_compiler

NOTHING_TO_START = 5.0  # seconds until the records are read again, which another queue may have added to
SECONDS = 3600.0


@dataclass
class Queue:
    """Where a queue stands: runs by the name of their folder. `left`: seconds until the time is up, infinite without.

    `elsewhere`: held by another process, which is making them; `failed` says why. `notes`: what a person should know
    and no run failed of: another queue at the same work, records of another version of the code or the text.
    """

    running: dict[str, Planned] = field(default_factory=dict)
    elsewhere: dict[str, Planned] = field(default_factory=dict)
    done: dict[str, Planned] = field(default_factory=dict)
    failed: dict[str, tuple[Planned, str]] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    missing: int = 0
    left: float = math.inf
    notes: list[str] = field(default_factory=list)


Watch = Callable[[Queue], None]
Hands = Callable[[Mapping[str, Job], Path, Path, int], Executor]  # of jobs, the runs' folder, a scratch folder, workers


def processes(jobs: Mapping[str, Job], out: Path, scratch: Path, workers: int) -> Executor:
    """Worker processes on this machine, which share its processors and GPUs."""
    return Pool(jobs, out, scratch, threads_each(workers))


def work_off(
    *,
    scale: str = "nano",
    hours: float | None = None,
    workers: int = 1,
    out: Path = Path("runs"),
    results: Path = Path("results/experiments"),
    questions: Mapping[str, Question] = QUESTIONS,
    order: Sequence[Wanted] = ORDER,
    folders: Iterable[Path] = (SHIPPED,),
    hands: Hands = processes,
    compiled: bool = False,
    watch: Watch = lambda queue: None,
) -> Queue:
    """Make the most valuable missing runs, `workers` at a time, for so many hours by a clock that never jumps.

    What is missing is planned anew whenever a run ends, from the records under `results` and in `folders`. A finished
    run is added to the record of its question under `results`. A run that the time, or a kill, cuts off keeps its
    checkpoints, and the next queue goes on with it. A run that another process holds is left to it, so queues that
    share `out` and `results` share the work; that another is there is told. A run that fails is noted in the record,
    does not stop the others, and is tried again by the next queue. `compiled`: trainings on text run under
    `torch.compile`, which changes numbers by rounding alone; the record counts such runs.

    Raises `InputError` for fewer than one worker, hours that are not positive, an unknown scale, a damaged record (to
    which no run could be added), folders that cannot be written, a disk without room for the next run, and `compiled`
    without a C++ compiler.
    """
    require_workers(workers)
    require_hours(hours)
    places = [results, *folders]
    records = known(places, scale, questions)  # bad input is reported before anything is written
    require_whole(records)
    plan(records, questions, order)
    check_writable(results)
    check_writable(out)
    if compiled:
        require_compiler()
    with tempfile.TemporaryDirectory(prefix="sinkscope-queue-") as scratch, ExitStack() as held:
        queue = Queue(notes=_others(held, results, out))
        executor = hands(queue.jobs, out, Path(scratch), workers)
        end = math.inf if hours is None else time.monotonic() + SECONDS * hours
        work = _Work(queue, executor, RunStore(out), results, places, scale, questions, order, compiled)
        try:
            while work.goes_on(end, workers):
                watch(queue)
                work.settle()
        except InputError:
            watch(queue)  # what ended before it is shown too: a run that failed may be the cause
            raise
        finally:
            executor.stop()
    if queue.running:
        called = ", ".join(planned.called for planned in queue.running.values())
        queue.notes.append(f"the time is up; kept in {out}, where the next queue goes on with it: {called}")
    queue.running = {}
    watch(queue)
    return queue


def _others(held: ExitStack, results: Path, out: Path) -> list[str]:
    """Holds the signs that a queue is at work here, for as long as this process lives; says whether one was."""
    records = _another(held, results)
    runs = records if results.resolve() == out.resolve() else _another(held, out)
    if records and runs:
        return [f"another queue is at work on {results}: the two share what is missing"]
    if records:
        return [f"another queue is at work on {results}, with another --out: what both make is made twice"]
    return [f"another queue makes runs in {out}, for other --results: what both make is made once"] if runs else []


def _another(held: ExitStack, folder: Path) -> bool:
    sign = folder / ".queue.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(FileLock(sign, timeout=0))
    except Timeout:
        return True
    except (OSError, NotImplementedError) as error:
        raise InputError(f"cannot lock {sign}: {error}; queues need a file system with locks") from error
    return False


@dataclass
class _Work:
    """What the loop of a queue holds between two looks."""

    queue: Queue
    executor: Executor
    store: RunStore
    results: Path
    places: Sequence[Path]
    scale: str
    questions: Mapping[str, Question]
    order: Sequence[Wanted]
    compiled: bool
    again: dict[Key, float] = field(default_factory=dict)  # when a run that another process holds is tried again
    unmakeable: set[Key] = field(default_factory=set)
    compared: set[str] = field(default_factory=set)  # identities whose records are of this version, or were told of
    look: float = -math.inf  # when to plan again

    def goes_on(self, end: float, workers: int) -> bool:
        """Starts what can be started; whether there is anything to wait for."""
        queue, now = self.queue, time.monotonic()
        queue.left = end - now
        if now >= end:
            return False
        while len(queue.running) < workers and time.monotonic() >= self.look:
            if not self._start():
                self.look = time.monotonic() + min(NOTHING_TO_START, AGAIN)
        return bool(queue.running or queue.elsewhere)

    def settle(self) -> None:
        """Waits a moment, and takes in what has ended."""
        for ended in self.executor.ended():
            planned = self.queue.running.pop(ended.name)
            self.look = -math.inf
            if ended.code == BUSY:
                self.queue.elsewhere[ended.name] = planned
                self.again[planned.key] = time.monotonic() + AGAIN
            elif ended.code == SETTLED:
                self._keep(ended.name, planned)
            else:
                self._failed(ended.name, planned, ended.reason or f"exit code {ended.code}, without a message")

    def _start(self) -> bool:
        """Starts the most valuable run that can be started; False where there is none."""
        records = known(self.places, self.scale, self.questions)
        missing = plan(records, self.questions, self.order)
        running = {planned.key for planned in self.queue.running.values()}
        missing = [each for each in missing if each.key not in self.unmakeable]
        self.queue.missing = len(missing)
        still = {each.key for each in missing}
        self.queue.elsewhere = {name: each for name, each in self.queue.elsewhere.items() if each.key in still}
        for planned in missing:
            if planned.key in running or time.monotonic() < self.again.get(planned.key, -math.inf):
                continue
            job = self.questions[planned.question].job(planned.label, planned.seed, self.scale)
            try:
                path = self.store.run(job).path
            except InputError as error:
                self._failed(planned.called, planned, str(error))
                return True
            if not path.exists():  # one that exists may be finished, and to be added alone
                check_room(self.store.path, stored_by(job) or 0)
            self._compare(records, planned)
            name = path.name
            self.queue.elsewhere.pop(name, None)
            self.queue.jobs[name] = job.compiled() if self.compiled else job
            self.queue.running[name] = planned
            self.executor.start(name)
            return True
        return False

    def _compare(self, records: Known, planned: Planned) -> None:
        """Whether the run's other seeds have the names that they would have today; told once of each identity."""
        identity = planned.key[0]
        if identity in self.compared:
            return
        self.compared.add(identity)
        question = self.questions[planned.question]
        for (key, seed), run in sorted(records.runs.items()):
            if key != identity:
                continue
            today = self.store.run(question.job(planned.label, seed, self.scale)).path.name
            if run.run != today:
                self.queue.notes.append(
                    f"{planned.question}: {planned.label}, seed {seed}: its record was made by another version of the "
                    f"code or of the text ({run.run}, not {today})"
                )
                return

    def _keep(self, name: str, planned: Planned) -> None:
        run = Run(self.store.path / name)
        try:
            observed(run)
        except InputError as error:  # this run's own fault, which stops no other
            self._failed(name, planned, str(error))
            return
        try:
            keep(self.results, self.scale, self.questions[planned.question], planned, run)
        except InputError as error:  # nor could what any other run found be written
            where = self.store.path
            raise InputError(f"{error}; the run is kept in {where}, and the same command adds it") from error
        self.queue.done[name] = planned

    def _failed(self, name: str, planned: Planned, why: str) -> None:
        self.unmakeable.add(planned.key)
        self.queue.failed[name] = (planned, why)
        with suppress(InputError):  # a record that cannot be written must not hide why the run failed
            keep_failure(self.results, self.scale, self.questions[planned.question], planned, why)


def keep(results: Path, scale: str, question: Question, planned: Planned, run: Run) -> None:
    """Add a settled run to the record of its question, as `experiment run` would write it; once, however often called.

    Held by a lock, since another queue may add to the same record.
    """
    found = observed(run)
    with _record_of(results, question, scale) as before:
        runs = {v.label: dict(before.runs.get(v.label, {})) for v in question.variations}
        runs |= {label: dict(seeds) for label, seeds in before.runs.items() if label not in runs}
        if runs[planned.label].get(planned.seed) == found:
            return
        others = {one.run for seeds in runs.values() for one in seeds.values()} - {found.run}
        runs[planned.label] = dict(sorted({**runs[planned.label], planned.seed: found}.items()))
        recorded = [(before.provenance, len(others))] if before.provenance else []
        seeds = max(before.seeds, planned.seed + 1)
        provenance = provenance_of([run], recorded)
        failed = _besides(before.failed, planned)
        aside.replace(results, before, Findings(question.name, scale, seeds, runs, failed, provenance))


def keep_failure(results: Path, scale: str, question: Question, planned: Planned, why: str) -> None:
    """Note in the record of a question why a run is missing; its own later run takes the note's place."""
    with _record_of(results, question, scale) as before:
        if planned.seed in before.runs.get(planned.label, {}):
            return
        failed = {label: dict(seeds) for label, seeds in _besides(before.failed, planned).items()}
        failed.setdefault(planned.label, {})[planned.seed] = why
        seeds = max(before.seeds, planned.seed + 1)
        kept.write(results, Findings(question.name, scale, seeds, before.runs, failed, before.provenance))


@contextmanager
def _record_of(results: Path, question: Question, scale: str) -> Iterator[Findings]:
    """The record of a question as it is, while nobody else writes it."""
    with aside.held(results, question.name, scale):
        yield kept.read(results, question.name, scale) or Findings(question.name, scale, 0, {})


def _besides(failed: Mapping[str, Mapping[int, str]], planned: Planned) -> dict[str, dict[int, str]]:
    """The failures of other runs."""
    left = {
        label: {seed: why for seed, why in seeds.items() if (label, seed) != (planned.label, planned.seed)}
        for label, seeds in failed.items()
    }
    return {label: seeds for label, seeds in left.items() if seeds}
