"""`sinkscope experiment queue`: the machine's idle hours, spent on the runs that claims lack most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from sinkscope.cli.live.experiment import Reader, values
from sinkscope.errors import InputError
from sinkscope.live import Watch, duration
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.experiments import Planned, Queue

FAILED = 1  # exit code where runs failed
COLUMNS = ("run", "why", "claims", "minutes", "hours in all")
PLAN = "Print what would be run, with estimated minutes; run nothing."
HOURS = "How long it works; without it until nothing is missing."
WORKERS = "Runs at once. They share the processors, or have OMP_NUM_THREADS threads each, and a GPU where there is one."
COMPILE = "Train under torch.compile: faster; numbers differ by rounding alone. Needs a C++ compiler."
Compiled = Annotated[bool, typer.Option("--compile", help=COMPILE)]
Hours = Annotated[float | None, typer.Option(help=HOURS)]


def queue_(
    hours: Hours = None,
    workers: Annotated[int, typer.Option(help=WORKERS)] = 1,
    scale: Annotated[str, typer.Option(metavar="nano|mini|paper", help="How large the models are.")] = "nano",
    out: Annotated[Path, typer.Option(help="The parent folder of runs.")] = Path("runs"),
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results/experiments"),
    compiled: Compiled = False,
    only_plan: Annotated[bool, typer.Option("--plan", help=PLAN)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Make the missing runs, the most valuable first, for some hours. It can be killed at any moment.

    First come the runs of a written order, then those that the most undecided claims lack. What is known is read from
    the records that come with the package and from those under --results, to which finished runs are added. Two queues
    on the same folders share the work, and say so. Exits with 1 if a run failed; the others are still made.
    """
    if only_plan:
        _plan(hours, workers, scale, results, as_json)
        return
    from sinkscope.experiments import work_off

    try:
        with only_json(as_json), watching(out) as watch:
            queue = work_off(
                scale=scale, hours=hours, workers=workers, out=out, results=results, compiled=compiled, watch=watch
            )
    except KeyboardInterrupt:
        note(f"finished work is kept in {out} and {results}; the same command continues from there")
        raise
    if as_json:
        failed = [_described(planned) | {"reason": why} for planned, why in queue.failed.values()]
        done = [_described(planned) for planned in queue.done.values()]
        show_json({"done": done, "failed": failed, "notes": queue.notes})
    else:
        made = f"{len(queue.done)} run{'' if len(queue.done) == 1 else 's'} made"
        where = f"; records: {results / scale}" if queue.done else ""
        show(plain(f"{made}, {len(queue.failed)} failed{where}"))
    if stderr().is_terminal:  # elsewhere each was a line as it came, and the view shows what failed
        for line in queue.notes:
            note(line)
    if queue.failed:
        raise typer.Exit(FAILED)


def _plan(hours: float | None, workers: int, scale: str, results: Path, as_json: bool) -> None:
    from sinkscope.experiments import SHIPPED, known, plan, require_hours, require_whole

    require_hours(hours)
    if workers < 1:
        raise InputError(f"workers = {workers}: at least 1")
    records = known([results, SHIPPED], scale)
    require_whole(records)
    rows: list[tuple[Planned, float]] = []
    spent = longest = 0.0
    for planned in plan(records):
        if hours is not None and spent >= hours * 3600 * workers:
            break
        spent += planned.seconds or 0.0
        longest = max(longest, planned.seconds or 0.0)
        rows.append((planned, max(longest, spent / workers)))
    unknown = sum(planned.seconds is None for planned, _ in rows)
    took = max(longest, spent / workers) / 3600
    if as_json:
        runs = [_described(each) for each, _ in rows]
        show_json({"scale": scale, "runs": runs, "hours": None if unknown else took, "of_unknown_length": unknown})
        return
    cells = [
        (each.called, each.why, str(each.claims), minutes(each.seconds), f"{so_far / 3600:.1f}")
        for each, so_far in rows
    ]
    show(table(COLUMNS, cells, numbers_from=2))
    about = f"about {took:.1f} h; times are those of the machines of before"
    lengths = f"how long {unknown} of them take is not known, the others {about}" if unknown else about
    show(plain(f"\n{len(rows)} runs, {lengths}"))
    for line in records.notes:
        note(line)


def minutes(seconds: float | None) -> str:
    """Estimated minutes; a dash where no run tells."""
    return "–" if seconds is None else f"{seconds / 60:.1f}"


def _described(planned: Planned) -> dict[str, Any]:
    return {
        "experiment": planned.question,
        "variation": planned.label,
        "seed": planned.seed,
        "why": planned.why,
        "undecided_claims": planned.claims,
        "estimated_seconds": planned.seconds,
    }


def watching(out: Path) -> Watch[Queue]:
    """What to hand to a queue: a live view on a terminal, a line per ended run elsewhere."""
    rows = _Rows(out)
    return Watch(rows.view, rows.lines, stderr(), every=1.0, status=rows.status)


class _Rows:
    """The runs that are being made, and how many have ended."""

    def __init__(self, out: Path) -> None:
        self.reader = Reader(out)

    def lines(self, queue: Queue) -> Iterator[tuple[str, str]]:
        for line in queue.notes:
            yield line, line
        for name, planned in queue.done.items():
            yield name, f"{planned.called}: {values(self.reader.newest(name, 'done')) or 'settled'}"
        for name, (planned, why) in queue.failed.items():
            yield name, f"{planned.called} failed: {why}"
        for name, planned in queue.running.items():
            yield f"start {name}", f"{planned.called}: started ({planned.why})"
        for name, planned in queue.elsewhere.items():
            yield f"elsewhere {name}", f"{planned.called}: another process is at it"

    def status(self, queue: Queue) -> str:
        """What runs, and what is done."""
        at = [
            f"{planned.called}: {100 * self._share(queue, name):.0f} % {values(self._newest(name))}".strip()
            for name, planned in queue.running.items()
        ]
        return "; ".join([*at, f"{len(queue.done)} done, {queue.missing} missing"])

    def view(self, queue: Queue) -> Group:
        rows = [
            (planned.called, planned.why, f"{100 * self._share(queue, name):.0f} %", values(self._newest(name)))
            for name, planned in queue.running.items()
        ]
        failures = [plain(f"{planned.called}: {why}") for planned, why in queue.failed.values()]
        left = "" if math.isinf(queue.left) else f", {duration(max(0.0, queue.left))} left"
        counts = f"{len(queue.done)} done, {len(queue.running)} running, {len(queue.failed)} failed"
        counts += f", {len(queue.elsewhere)} elsewhere, {queue.missing} missing{left}"
        return Group(table(("run", "why", "made", "newest"), rows, numbers_from=2), *failures, Text(counts))

    def _newest(self, name: str) -> dict[str, Any]:
        return self.reader.newest(name, "running")

    def _share(self, queue: Queue, name: str) -> float:
        return self.reader.share(queue.jobs, name, "running")
