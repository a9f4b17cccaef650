"""`sinkscope experiment`: list and show questions, train their runs, and judge their claims."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from sinkscope.cli import options
from sinkscope.cli.command import App, When
from sinkscope.cli.options import BAD_INPUT
from sinkscope.errors import InputError, unknown
from sinkscope.live import LiveView, duration
from sinkscope.report.terminal import flat, note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.experiments import Expected, Findings, Job, Question, Sweep, SweepProgress
    from sinkscope.statistics.claims import Verdict

app = App(no_args_is_help=True, help="Ask questions of training runs: list, show, run, verdict.")

FAILED = 1  # exit code where runs failed
RESULTS = Path("results/experiments")
NONE_INSTALLED = "no package with experiments is installed: `sinkscope-replication` has those of the paper"
CLAIM_COLUMNS = ("claim", "asked", "found", "models", "grade")
LOG_SHOWN = (("validation_loss", "loss"), ("sink/position_0", "sink"))
OLD = "old"  # the state of a run that existed before
ABOUT_PLAN = (
    "hours are those that similar runs took, by their records, or steps at their pace; a run whose folder exists is "
    "not trained again, which is known only when its text is prepared"
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of an experiment, or a Python file that holds one.")
]
Scale = Annotated[str, typer.Option(metavar="nano|mini|paper", help="The size of the models.")]
Results = Annotated[Path, typer.Option(help="Folder of your own records.")]

TRAINS = When(lambda values: values["backend"] != "none", "goes with a backend that trains: none only judges")
JUDGES_ALL = When(lambda values: values["every"], "goes with --all: one experiment is shown whole")


@app.command("list", epilog="Example: sinkscope experiment list")
def list_(scale: Scale = "nano", results: Results = RESULTS, as_json: options.AsJson = False) -> None:
    """List the questions of installed packages, and what is known about each at a scale."""
    from sinkscope.experiments import QUESTIONS, verdicts
    from sinkscope.statistics.claims import tally

    require_folder(results)
    findings, damaged = read_records(QUESTIONS.values(), scale, results)
    rows = [(q, verdicts(q, findings[q.name], scale)) for q in QUESTIONS.values()]
    if as_json:
        show_json(
            {"experiments": [{"name": q.name, "asks": q.asks, "source": q.source, "known": tally(v)} for q, v in rows]}
        )
        report_damage(damaged)
        return
    cells = [(q.name, q.asks, q.source, tally(v)) for q, v in rows]
    show(table(("experiment", "question", "source", f"claims at {scale}"), cells, numbers_from=4))
    if not rows:
        note(NONE_INSTALLED)
    report_damage(damaged)


@app.command("show", epilog="Example: sinkscope experiment show my_question.py")
def show_(name: Name, scale: Scale = "nano", results: Results = RESULTS, as_json: options.AsJson = False) -> None:
    """Show a question: its variations, published numbers, the runs that are known, and the claims that decide."""
    from sinkscope.experiments import find, known, standing_of

    require_folder(results)
    question = find(name)
    require_runnable(question, scale)
    findings = known(question, scale, results)
    seeds = {v.label: sorted(findings.runs.get(v.label, {})) if findings else [] for v in question.variations}
    if as_json:
        show_json(_question_json(question, seeds))
        return
    show(Text(question.asks, "bold"))
    show(plain(f"{question.source}\n"))
    if question.note:
        show(plain(f"{question.note}\n"))
    variations = [
        (
            v.label,
            _changes({**question.shared, **v.changes}),
            _changes(v.published),
            _seeds(question.seeds_of(v.label)),
            _seeds(seeds[v.label]),
        )
        for v in question.variations
    ]
    columns = ("variation", "changes", "published", "seeds that decide", f"runs at {scale}")
    show(table(columns, variations, numbers_from=3))
    show(plain(""))
    claims = [(a.claim.name, a.claim.statement, str(a.claim.rule)) for a in question.assertions]
    show(table(("claim", "statement", "asked"), claims, numbers_from=3))
    if undecided := undecidable(question):
        show(plain(f"\n{undecided}"))
    show(plain(f"\n{standing_of(question, findings).words}"))
    if scale in question.not_at:
        show(plain(f"not run at scale {scale}: {question.not_at[scale]}"))


@app.command("run", epilog="Example: sinkscope experiment run my_question.py --scale nano")
def run_(
    name: Name,
    scale: Scale = "nano",
    seeds: Annotated[
        int | None, typer.Option(help="Train the first N of the question's seeds now.", show_default="all")
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            help="Runs at once. They share the processors, or have OMP_NUM_THREADS threads each, and a GPU if there is "
            "one."
        ),
        TRAINS,
    ] = 1,
    backend: Annotated[
        str,
        typer.Option(metavar="local|ray|none", help="Where runs are trained; none: only judge those that exist."),
    ] = "local",
    out: Annotated[Path, typer.Option(help="The parent folder of runs.")] = Path("runs"),
    results: Results = RESULTS,
    reuse: Annotated[
        bool,
        typer.Option(
            "--reuse",
            help="Take runs whose folders are gone from records under --results and the question's own; do not train "
            "them.",
        ),
    ] = False,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Train under torch.compile: faster, and numbers differ only by rounding. Needs a C++ compiler.",
        ),
        TRAINS,
    ] = False,
    plan_only: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Train the runs that do not exist yet, and judge the claims. The same command continues after an interruption.

    Exits with 1 if a run failed; the others are still trained and judged. With --backend none, with 2 if the question
    was edited after its runs or lacks a variation that has some.
    """
    from sinkscope.experiments import backend_named, find, known, path_of, run, standing_of

    question, chosen = find(name), backend_named(backend)
    if plan_only:
        require_runnable(question, scale)
        _show_plan(question, scale, seeds, workers, results, reuse, as_json)
        return
    if backend != "none":
        cost = _expected(question, scale, seeds, workers, results, reuse)
        took = "for an unknown time" if cost.seconds is None else f"about {hours(cost.seconds / workers)}"
        note(f"{cost.runs} runs, {took}, less what exists already")
        if undecided := undecidable(question, seeds):
            note(undecided)
        if not (stands := standing_of(question, known(question, scale, results))).registered:
            note(stands.words)
    record = path_of(results, question.name, scale)
    try:
        with only_json(as_json), watching_runs(out) as watch:
            findings = run(
                question,
                scale=scale,
                seeds=seeds,
                out=out,
                results=results,
                workers=workers,
                backend=chosen,
                reuse=reuse,
                compiled=compiled,
                watch=watch,
            )
    except KeyboardInterrupt:
        note(f"finished work is kept in {out}; the same command continues from there")
        raise
    gone = _show_findings(question, findings, record, as_json)
    if findings.failed:
        raise typer.Exit(FAILED)
    if backend == "none" and (report_edited(question, findings) or gone):
        raise typer.Exit(BAD_INPUT)


@app.command("verdict", epilog="Example: sinkscope experiment verdict --all")
def verdict_(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A name, or a Python file.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Judge every experiment.")] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="With --all: print every claim with its verdict, not only the totals."),
        JUDGES_ALL,
        options.PRINTS,
    ] = False,
    scale: Scale = "nano",
    results: Results = RESULTS,
    as_json: options.AsJson = False,
) -> None:
    """Judge the claims again from stored records and from the runs that come with a question; train nothing."""
    from sinkscope.experiments import QUESTIONS, find, known, verdicts

    if every == (name is not None):
        raise InputError("name one experiment, or pass --all")
    require_folder(results)
    questions = list(QUESTIONS.values()) if name is None else [find(name)]
    if every:
        findings, damaged = read_records(questions, scale, results)
    else:  # for one question that is named, damage is an error
        findings, damaged = {each.name: known(each, scale, results) for each in questions}, []
        if findings[questions[0].name] is None:  # runs were made of valid recipes: these need no torch
            require_recipes(questions[0], scale)
    judged = [
        JudgedQuestion(each, findings[each.name], verdicts(each, findings[each.name], scale)) for each in questions
    ]
    if as_json:
        show_json(_verdicts_json(judged, scale))
    elif every:
        _show_every(judged, full)
    else:
        show_verdicts(judged)
        _show_totals(judged)
        if judged[0].findings is None:
            judge = f"sinkscope experiment run {name} --backend none"
            note(f"no record yet; to judge what an interrupted run has finished: {judge}")
    gone = [each for each in judged if report_left_out(each)]
    report_damage(damaged)
    if not every and (report_edited(judged[0].question, judged[0].findings) or gone):
        raise typer.Exit(BAD_INPUT)


@dataclass(frozen=True)
class JudgedQuestion:
    """A question, its findings, and the verdicts on its claims."""

    question: Question
    findings: Findings | None
    verdicts: Sequence[Verdict]

    @property
    def decided_by(self) -> Findings | None:
        """Its runs without those of seeds that it does not name, which other questions made."""
        from sinkscope.experiments.grading import counting

        return self.findings and replace(self.findings, runs=counting(self.question, self.findings))


def require_folder(results: Path) -> None:
    """Raise `InputError` for a folder of records that is named and does not exist."""
    if results != RESULTS and not results.is_dir():
        raise InputError(f"no folder {results}: without --results your records in {RESULTS} are read")


def require_recipes(question: Question, scale: str) -> None:
    """Raise `InputError` for wrong recipes, and for claims about variations that there are not, or that are one."""
    from sinkscope.experiments import check_apart, keys, labels_read

    for assertion in question.assertions:
        labels_read(question, assertion)
    check_apart(question, keys(question, scale))


def require_runnable(question: Question, scale: str) -> None:
    """Raise what `run` raises before anything is trained: as `require_recipes`, and for files of text that are absent.

    Nothing is downloaded: corpora of the hub are not looked for.
    """
    from sinkscope.data import load_corpus

    require_recipes(question, scale)
    jobs = question.recipes(scale, [0]).values() if scale not in question.not_at else ()
    texts = [job.data for job in jobs if hasattr(job, "data")]
    for name in dict.fromkeys(name for text in texts for name in (text.corpus, *text.mixture)):
        if name.startswith(("text:", "chat:")):
            load_corpus(name)


def read_records(
    questions: Iterable[Question], scale: str, results: Path
) -> tuple[Mapping[str, Findings | None], list[str]]:
    """The findings of each question by name, and why those of some cannot be read.

    Raises `InputError` for an unknown scale, at which no question could be read.
    """
    from sinkscope.experiments import SCALES, known

    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    findings: dict[str, Findings | None] = {}
    damaged: list[str] = []
    for question in questions:
        try:
            findings[question.name] = known(question, scale, results)
        except InputError as error:
            findings[question.name] = None
            damaged += [str(error)] if str(error) not in damaged else []
    return findings, damaged


def report_damage(damaged: Sequence[str]) -> None:
    """Name the records that could not be read, after everything else; exits with 2 if there are any."""
    for line in damaged:
        note(f"not judged: {line}")
    if damaged:
        raise typer.Exit(BAD_INPUT)


def hours(seconds: float) -> str:
    """`1.25 h`, and below a tenth of an hour `4.2 min`."""
    return f"{seconds / 3600:.2f} h" if seconds >= 360 else f"{seconds / 60:.1f} min"


def show_verdicts(judged: Iterable[JudgedQuestion]) -> None:
    """Print each question with the cost of its runs, one row per claim (the first is primary), and its registration."""
    from sinkscope.experiments import standing_of, without_sinks
    from sinkscope.statistics.claims import cells

    for index, each in enumerate(judged):
        if index:
            show(plain(""))
        findings, deciding = each.findings, each.decided_by
        cost = f"{_count_runs(int(deciding.cost['runs']))}, {hours(deciding.seconds)}" if deciding else "no runs"
        show(Text(each.question.name, "bold").append(plain(f": {each.question.asks} ({cost})\n")))
        rows = [
            (
                f"{'' if number else 'primary: '}{verdict.claim.statement}",
                *cells(verdict, "asked", "found", "cases", "grade"),
            )
            for number, verdict in enumerate(each.verdicts)
        ]
        show(table(CLAIM_COLUMNS, rows, numbers_from=len(CLAIM_COLUMNS)))
        show(plain(f"\n{standing_of(each.question, findings).words}"))
        if each.question.note:
            show(plain(each.question.note))
        if findings and (warning := without_sinks(each.question, findings)):
            note(warning)


def report_edited(question: Question, findings: Findings | None) -> bool:
    """Say that a question was edited after its runs; whether it was."""
    from sinkscope.experiments import standing_of

    if edited := standing_of(question, findings).edited:
        note(f"'{question.name}' was edited after its runs, so no claim of it is confirmed")
    return edited


def report_left_out(judged: JudgedQuestion) -> bool:
    """Name the known runs that are not judged; whether some are of a variation that is gone."""
    if judged.findings is None:
        return False
    for line in judged.findings.notes:
        note(f"{judged.question.name}: {line}")
    labels = judged.question.labels
    gone = {label: runs for label, runs in judged.findings.runs.items() if runs and label not in labels}
    for label, runs in gone.items():
        note(f"not judged: {_count_runs(len(runs))} of '{label}', a variation that is gone")
    return bool(gone)


def _show_every(judged: Sequence[JudgedQuestion], full: bool) -> None:
    """Print how many claims are decided; with `full` every claim that was run."""
    _show_totals(judged)
    if not full:
        note("--full lists every claim; name an experiment for its own")
        return
    ran = [each for each in judged if any(verdict.value is not None for verdict in each.verdicts)]
    show(plain(""))
    show_verdicts(ran)


def _show_totals(judged: Sequence[JudgedQuestion]) -> None:
    """Print how many claims have each grade, and what the runs cost."""
    from sinkscope.statistics.claims import tally

    grades = tally(verdict for each in judged for verdict in each.verdicts)
    cost = _total_cost(judged)
    show(plain(f"\n{grades}; {_count_runs(int(cost['runs']))} of {hours(cost['seconds'])}"))


def _show_findings(question: Question, findings: Findings, record: Path, as_json: bool) -> bool:
    """Print runs and verdicts; whether some runs are of a variation that is gone."""
    from sinkscope.experiments import verdicts
    from sinkscope.statistics.claims import tally

    judged = verdicts(question, findings, findings.scale)
    if as_json:
        shown = {**findings.to_dict(), "verdicts": [verdict.to_dict() for verdict in judged], "record": str(record)}
        show_json(shown)
    else:
        rows = [
            (label, seed, run.status, *(f"{run[metric]:.2f}" for metric in question.shown))
            for label, seeds in findings.runs.items()
            for seed, run in seeds.items()
        ]
        show(table(("variation", "seed", "run", *question.shown), rows, numbers_from=1, keys=2))
        show(plain(""))
        show_verdicts([JudgedQuestion(question, findings, judged)])
        show(plain(f"\n{tally(judged)}"))
    gone = report_left_out(JudgedQuestion(question, findings, judged))
    for label, seeds in findings.failed.items():
        for seed, why in seeds.items():
            note(f"{label}, seed {seed} failed: {why}")
    missing = sum(
        seed not in {*findings.runs.get(label, {}), *findings.failed.get(label, {})}
        for label in question.labels
        for seed in question.seeds_of(label)
    )
    if missing:
        note(f"{missing} of the runs that decide are not there")
    note(f"record: {record}; runs of {hours(findings.seconds)}")
    return gone


def _question_json(question: Question, seeds: Mapping[str, list[int]]) -> dict[str, Any]:
    return {
        "name": question.name,
        "asks": question.asks,
        "source": question.source,
        "note": question.note,
        "variations": [
            {
                "label": v.label,
                "changes": {**question.shared, **v.changes},
                "published": dict(v.published),
                "decided_by": list(question.seeds_of(v.label)),
                "seeds": seeds[v.label],
            }
            for v in question.variations
        ],
        "claims": [
            {"name": c.name, "statement": c.statement, "asked": str(c.rule), "source": c.source}
            for c in (assertion.claim for assertion in question.assertions)
        ],
    }


def _verdicts_json(judged: Sequence[JudgedQuestion], scale: str) -> dict[str, Any]:
    from sinkscope.experiments import standing_of

    return {
        "scale": scale,
        "verdicts": [
            {"experiment": each.question.name, "primary": not index, **verdict.to_dict()}
            for each in judged
            for index, verdict in enumerate(each.verdicts)
        ],
        "registered": {each.question.name: vars(standing_of(each.question, each.findings)) for each in judged},
        "costs": {each.question.name: found.cost for each in judged if (found := each.decided_by) is not None},
        "cost": _total_cost(judged),
    }


def _total_cost(judged: Sequence[JudgedQuestion]) -> dict[str, float]:
    """How many runs all questions have together, and how long they took; a run that several read counts once."""
    found = [deciding for each in judged if (deciding := each.decided_by)]
    runs = [run for deciding in found for seeds in deciding.runs.values() for run in seeds.values()]
    seconds = {run.run: run.seconds for run in runs}
    return {"runs": len(seconds), "seconds": math.fsum(seconds.values())}


def _count_runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _seeds(seeds: Sequence[int]) -> str:
    """Seeds in words: `6 (0 to 5)`, `3 (0, 4, 7)`."""
    if not seeds:
        return "0"
    is_range = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{len(seeds)} ({f'{seeds[0]} to {seeds[-1]}' if is_range else ', '.join(map(str, seeds))})"


def _changes(values: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "–"


def _show_plan(
    question: Question, scale: str, seeds: int | None, workers: int, results: Path, reuse: bool, as_json: bool
) -> None:
    """Print runs, hours and bytes of disk. Raises `InputError` as `_expected` does."""
    from sinkscope.experiments import known, standing_of

    expected = _expected(question, scale, seeds, workers, results, reuse)
    time_needed = None if expected.seconds is None else expected.seconds / 3600 / workers
    undecided = undecidable(question, seeds)
    stands = standing_of(question, known(question, scale, results))
    if as_json:
        show_json(
            {
                "experiment": question.name,
                "scale": scale,
                "runs": expected.runs,
                "reused": expected.reused,
                "hours": time_needed,
                "disk_bytes": expected.disk,
                "seeds": undecided,
                "registered": vars(stands),
            }
        )
        return
    rows = [
        ("runs to train", f"{expected.runs} ({len(question.variations)} variations)"),
        ("taken from records", f"{expected.reused}" if reuse else "none (--reuse takes those that are there)"),
        ("hours", "unknown: no similar run has a record" if time_needed is None else f"about {time_needed:.1f}"),
        ("disk", "unknown" if expected.disk is None else f"about {expected.disk / 2**20:.0f} MiB"),
    ]
    show(table(("what it would take", ""), rows, numbers_from=2))
    if undecided:
        show(plain(undecided))
    show(plain(stands.words))
    show(plain(ABOUT_PLAN))


def _expected(question: Question, scale: str, seeds: int | None, workers: int, results: Path, reuse: bool) -> Expected:
    """What the runs would take. Raises `InputError` for fewer than one worker, and for a damaged record."""
    from sinkscope.experiments import expected, known

    if workers < 1:
        raise InputError(f"--workers {workers}: at least 1")
    return expected(question, scale, known(question, scale, results), seeds, reuse)


def undecidable(question: Question, seeds: int | None = None) -> str:
    """Which claims the planned runs cannot decide, whatever they show; empty if they can decide all."""
    from sinkscope.experiments import Shares, labels_read
    from sinkscope.statistics.claims import Count, Size

    never, later = [], []
    for assertion in question.assertions:
        rule = assertion.claim.rule
        assert isinstance(rule, Count | Size)
        single = [(label,) for label in labels_read(question, assertion)]
        groups = assertion.effect.groups if isinstance(assertion.effect, Shares) else single
        planned = [sum(len(question.seeds_of(label)) for label in group) for group in groups]
        if not rule.can_decide(*planned):
            never.append(assertion.claim.name)
        elif seeds is not None and seeds < max(len(question.seeds_of(each)) for group in groups for each in group):
            later.append(assertion.claim.name)
    claims = len(question.assertions)
    parts = []
    if never:
        names = ", ".join(f"'{name}'" for name in never)
        parts.append(
            f"the question's seeds can never decide {len(never)} of {claims} claims ({names}): fix more of them"
        )
    if later:
        parts.append(f"{len(later)} of {claims} claims stay open until all of the question's seeds are run")
    return "; ".join(parts)


def watching_runs(out: Path) -> LiveView[SweepProgress]:
    """The progress of a sweep: a live view on a terminal, one line per settled run elsewhere."""
    view = _RunsView(out)
    return LiveView(view.draw, view.lines, stderr(), every=1.0, status=view.status)


class LogReader:
    """The logs of runs; those of settled runs are read once."""

    def __init__(self, out: Path) -> None:
        from sinkscope.experiments import RunStore

        self.store = RunStore(out)
        self.settled: dict[str, dict[str, Any]] = {}
        self.lengths: dict[str, Any] = {}

    def newest_row(self, name: str, state: str) -> dict[str, Any]:
        from sinkscope.training import Run

        if name in self.settled:
            return self.settled[name]
        row = self.store.progress(Run(self.store.path / name))
        if state in ("done", "failed", OLD):
            self.settled[name] = row
        return row

    def share_done(self, jobs: Mapping[str, Job], name: str, state: str) -> float:
        """Which share of a run is done, 0 to 1."""
        if state in ("done", "failed"):
            return 1.0
        if name not in self.lengths:
            fields = flat(jobs[name].model_dump(mode="json"))
            self.lengths[name] = next((value for field, value in fields if field.split(".")[-1] == "steps"), 0)
        steps = self.lengths[name]
        return min(1.0, self.newest_row(name, state).get("step", 0) / steps) if steps else 0.0


class _RunsView:
    """The question's variations × seeds; a cell is a run."""

    def __init__(self, out: Path) -> None:
        self.logs = LogReader(out)
        self.settled: list[str] = []  # names of runs, in the order in which they settled
        self.start: tuple[float, float] | None = None  # when, and how many runs were done by then, in shares

    def lines(self, progress: SweepProgress) -> Iterator[tuple[str, str]]:
        sweep = progress.sweep
        self.settled += [name for name in [*sweep.done, *sweep.failed] if name not in self.settled]
        for number, name in enumerate(self.settled, 1):
            outcome = sweep.failed.get(name) or losses(self.logs.newest_row(name, "done")) or "settled"
            yield name, f"{_label(progress, name)}: {outcome} ({number} of {len(_states(sweep))})"

    def status(self, progress: SweepProgress) -> str:
        """What runs, and how long it will take."""
        states = _states(progress.sweep)
        current = [
            f"{_label(progress, name)}: {100 * self.logs.share_done(progress.jobs, name, state):.0f} % "
            f"{losses(self.logs.newest_row(name, state))}".strip()
            for name, state in states.items()
            if state == "running"
        ]
        return "; ".join([*current, f"{counts(progress.sweep)}{self._time_left(progress, states)}"])

    def draw(self, progress: SweepProgress) -> Group:
        states = _states(progress.sweep)
        seeds = sorted({seed for _, seed in progress.cells})
        labels = dict.fromkeys(label for label, _ in progress.cells)
        rows = [
            (label, *(self._cell(progress, states, progress.cells[label, seed]) for seed in seeds)) for label in labels
        ]
        columns = ("variation", *(f"seed {seed}" for seed in seeds))
        failures = [plain(f"{_label(progress, name)}: {why}") for name, why in progress.sweep.failed.items()]
        runs = table(columns, rows, numbers_from=1)
        return Group(runs, *failures, Text(f"{counts(progress.sweep)}{self._time_left(progress, states)}"))

    def _cell(self, progress: SweepProgress, states: Mapping[str, str], name: str) -> str:
        state = states.get(name, OLD)
        newest = self.logs.newest_row(name, state)
        if state in ("done", OLD):
            return losses(newest) or "done"
        if state != "running":
            return state
        return f"{100 * self.logs.share_done(progress.jobs, name, state):.0f} % {losses(newest)}".strip()

    def _time_left(self, progress: SweepProgress, states: Mapping[str, str]) -> str:
        done = sum(self.logs.share_done(progress.jobs, name, state) for name, state in states.items())
        if self.start is None:
            self.start = (time.monotonic(), done)
        seconds = seconds_left(done - self.start[1], len(states) - done, time.monotonic() - self.start[0])
        return "" if seconds is None else f", about {duration(seconds)} left"


def seconds_left(done: float, left: float, elapsed: float) -> float | None:
    """Seconds until `left` runs are done, when `done` took `elapsed`, both in shares of runs; None if unknown."""
    return left * elapsed / done if done > 0 and left > 0 else None


def losses(row: Mapping[str, Any]) -> str:
    """The newest loss and sink rate of a run's log: `loss 3.21, sink 12.40`."""
    return ", ".join(f"{name} {row[key]:.2f}" for key, name in LOG_SHOWN if row.get(key) is not None)


def counts(sweep: Sweep) -> str:
    """How many runs of a sweep are in each state."""
    states = list(_states(sweep).values())
    return ", ".join(
        f"{states.count(state)} {state}" for state in ("done", "running", "failed", "elsewhere", "waiting")
    )


def _states(sweep: Sweep) -> dict[str, str]:
    """The state of every run of a sweep, by name."""
    by_state = {
        "waiting": sweep.waiting,
        "running": sweep.running,
        "elsewhere": sweep.elsewhere,
        "done": sweep.done,
        "failed": list(sweep.failed),
    }
    return {name: state for state, names in by_state.items() for name in names}


def _label(progress: SweepProgress, name: str) -> str:
    """The variations and seeds that share a run."""
    return ", ".join(f"{label}, seed {seed}" for (label, seed), run in progress.cells.items() if run == name)
