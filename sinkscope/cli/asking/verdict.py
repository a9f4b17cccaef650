"""`sinkscope experiment verdict`: what the records say of the claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sinkscope.cli.commands import When
from sinkscope.cli.options import OF_PEOPLE
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.experiments import Findings, Question
    from sinkscope.statistics.claims import Verdict

BAD_INPUT = 2  # exit code where a record cannot be read
RESULTS = Path("results/experiments")
OF_ALL = When(lambda values: values["every"], "goes with --all: one experiment is shown whole")
OF_CLAIMS = ("claim", "asked", "found", "models", "grade")


@dataclass(frozen=True)
class Ruled:
    """A question, what was found of it, and the verdicts on its claims."""

    question: Question
    findings: Findings | None
    verdicts: Sequence[Verdict]


def verdict_(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A name, or a Python file.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Judge every experiment.")] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="With --all: every claim and its verdict, not the sums alone."),
        OF_ALL,
        OF_PEOPLE,
    ] = False,
    scale: Annotated[str, typer.Option(metavar="nano|mini|paper", help="How large the models are.")] = "nano",
    results: Annotated[Path, typer.Option(help="Folder of your own records.")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Judge the claims again from stored records and from the runs that come with a question; train nothing."""
    from sinkscope.experiments import QUESTIONS, find, known, verdicts

    if every == (name is not None):
        raise InputError("name one experiment, or pass --all")
    require_folder(results)
    questions = list(QUESTIONS.values()) if name is None else [find(name)]
    if every:
        found, damaged = found_of(questions, scale, results)
    else:  # of one question that is named, damage is an error
        found, damaged = {each.name: known(each, scale, results) for each in questions}, []
    ruled = [Ruled(each, found[each.name], verdicts(each, found[each.name], scale)) for each in questions]
    if as_json:
        show_json(_described(ruled, scale))
    elif every:
        _show_every(ruled, full)
    else:
        show_verdicts(ruled)
        _show_sums(ruled)
    tell_damage(damaged)


def found_of(
    questions: Iterable[Question], scale: str, results: Path
) -> tuple[Mapping[str, Findings | None], list[str]]:
    """What is known of each question, by its name, and why of some it could not be read."""
    from sinkscope.experiments import known

    found: dict[str, Findings | None] = {}
    damaged: list[str] = []
    for question in questions:
        try:
            found[question.name] = known(question, scale, results)
        except InputError as error:
            found[question.name] = None
            damaged += [str(error)] if str(error) not in damaged else []
    return found, damaged


def require_folder(results: Path) -> None:
    """Raise `InputError` for a folder of records that is named and is not there."""
    if results != RESULTS and not results.is_dir():
        raise InputError(f"no folder {results}: without --results your records in {RESULTS} are read")


def tell_damage(damaged: Sequence[str]) -> None:
    """Which records could not be read, when all else has been said; exits with 2 where there are any."""
    for line in damaged:
        note(f"not judged: {line}")
    if damaged:
        raise typer.Exit(BAD_INPUT)


def show_verdicts(ruled: Iterable[Ruled]) -> None:
    """Each question with what its runs cost, one row per claim (the first is the primary one), and its registration."""
    from sinkscope.experiments import standing_of, without_sinks
    from sinkscope.statistics.claims import cells

    for place, each in enumerate(ruled):
        if place:
            show(plain(""))
        found = each.findings
        cost = f"{_runs(int(found.cost['runs']))}, {hours(found.seconds)}" if found else "no runs"
        show(Text(each.question.name, "bold").append(plain(f": {each.question.asks} ({cost})\n")))
        rows = [
            (
                f"{'' if index else 'primary: '}{verdict.claim.statement}",
                *cells(verdict, "asked", "found", "cases", "grade"),
            )
            for index, verdict in enumerate(each.verdicts)
        ]
        show(table(OF_CLAIMS, rows, numbers_from=len(OF_CLAIMS)))
        show(plain(f"\n{standing_of(each.question, found).words}"))
        if found and (warning := without_sinks(each.question, found)):
            note(warning)


def hours(seconds: float) -> str:
    """What runs cost: `1.25 h`, and below a tenth of an hour `4.2 min`."""
    return f"{seconds / 3600:.2f} h" if seconds >= 360 else f"{seconds / 60:.1f} min"


def _runs(many: int) -> str:
    return f"{many} run{'' if many == 1 else 's'}"


def _show_every(ruled: Sequence[Ruled], full: bool) -> None:
    """How many claims are decided; with `full` every claim that was run."""
    _show_sums(ruled)
    if not full:
        note("--full lists every claim; name an experiment for its own")
        return
    ran = [each for each in ruled if any(verdict.value is not None for verdict in each.verdicts)]
    show(plain(""))
    show_verdicts(ran)


def _show_sums(ruled: Sequence[Ruled]) -> None:
    """How many claims have each grade, and what the runs cost."""
    from sinkscope.statistics.claims import tally

    grades = tally(verdict for each in ruled for verdict in each.verdicts)
    cost = _cost(ruled)
    show(plain(f"\n{grades}; {_runs(int(cost['runs']))} of {hours(cost['seconds'])}"))


def _cost(ruled: Sequence[Ruled]) -> dict[str, float]:
    """How many runs all questions have together, and how long they took: one that several read counts once."""
    runs = [run for each in ruled if each.findings for seeds in each.findings.runs.values() for run in seeds.values()]
    shared = {run.run: run.seconds for run in runs}
    return {"runs": len(shared), "seconds": math.fsum(shared.values())}


def _described(ruled: Sequence[Ruled], scale: str) -> dict[str, Any]:
    from sinkscope.experiments import standing_of

    return {
        "scale": scale,
        "verdicts": [
            {"experiment": each.question.name, "primary": not index, **verdict.to_dict()}
            for each in ruled
            for index, verdict in enumerate(each.verdicts)
        ],
        "registered": {each.question.name: vars(standing_of(each.question, each.findings)) for each in ruled},
        "costs": {each.question.name: each.findings.cost for each in ruled if each.findings is not None},
        "cost": _cost(ruled),
    }
