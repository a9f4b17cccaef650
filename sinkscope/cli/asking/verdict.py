"""`sinkscope experiment verdict`: what the records say of the claims, the paper's first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sinkscope.cli.commands import When
from sinkscope.cli.options import OF_PEOPLE
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.claims import Verdict
    from sinkscope.experiments import Answer, Findings, Known, Question, Stated

BAD_INPUT = 2  # exit code where a record cannot be read
RESULTS = Path("results/experiments")
KNOWN = "Folder of the records; without it those that come with the package, and results/experiments before them."
Records = Annotated[Path | None, typer.Option("--results", help=KNOWN)]
OF_THE_PAPER = ("the paper says", "published", "effect (95 % interval)", "seeds", "could show", "experiment", "verdict")
OF_ALL = When(lambda values: values["every"], "goes with --all: one experiment is shown whole")
OF_CLAIMS = ("claim", "asked", "effect (95 % interval)", "seeds", "could show", "verdict")


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
    results: Records = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Judge the claims again from stored records; train nothing.

    A run counts wherever a claim reads it, whatever question its record was made for. With --all the statements of Gu
    et al. 2025 come first, each with the claim that answers it; then all claims that were run, those of synthetic tasks
    apart.
    """
    from sinkscope.experiments import QUESTIONS, find, known, verdicts

    if every == (name is not None):
        raise InputError("name one experiment, or pass --all")
    questions = list(QUESTIONS.values()) if name is None else [find(name)]
    records = known(folders_of(results), scale, own=questions)
    broken = records.damaged if every else {}  # of one question that is named it is an error
    found = [(question, None if question.name in broken else records.of(question)) for question in questions]
    ruled = [Ruled(question, of_it, verdicts(question, of_it, scale)) for question, of_it in found]
    if as_json:
        show_json(_described(ruled, records, every))
        tell_damage(records, every)
        return
    if every:
        _show_every(ruled, full)
    else:
        show_verdicts(ruled)
        _show_sums(ruled, every)
    for line in records.notes:
        note(line)
    tell_damage(records, every)


def tell_damage(records: Known, asked: bool = True) -> None:
    """Which records could not be read, when all else has been said; exits with 2 where these were `asked` for."""
    for line in records.damaged.values():
        note(f"not judged: {line}")
    if records.damaged and asked:
        raise typer.Exit(BAD_INPUT)


def folders_of(results: Path | None) -> list[Path]:
    """Where records are read: the folder that was named, or one's own and those that come with the package.

    Raises `InputError` for a folder that is named and is not there.
    """
    from sinkscope.experiments import SHIPPED

    if results is None:
        return [RESULTS, SHIPPED]
    if not results.is_dir():
        raise InputError(f"no folder {results}: without --results your own records and those of the package are read")
    return [results]


def show_verdicts(ruled: Iterable[Ruled]) -> None:
    """Each question with what its runs cost, and a row for each of its claims: the first is the primary one."""
    from sinkscope.claims import cells

    for place, each in enumerate(ruled):
        if place:
            show(plain(""))
        found = each.findings
        cost = f"{_runs(int(found.cost['runs']))}, {hours(found.seconds)}" if found else "no runs"
        show(Text(each.question.name, "bold").append(plain(f": {each.question.asks} ({cost})\n")))
        rows = [
            (
                f"{'' if index else 'primary: '}{verdict.claim.statement}",
                *cells(verdict, "asked", "found", "cases"),
                verdict.shown_at_least,
                *cells(verdict, "verdict"),
            )
            for index, verdict in enumerate(each.verdicts)
        ]
        show(table(OF_CLAIMS, rows, numbers_from=len(OF_CLAIMS)))


def hours(seconds: float) -> str:
    """What runs cost: `1.25 h`, and below a tenth of an hour `4.2 min`."""
    return f"{seconds / 3600:.2f} h" if seconds >= 360 else f"{seconds / 60:.1f} min"


def _runs(many: int) -> str:
    return f"{many} run{'' if many == 1 else 's'}"


def _show_every(ruled: Sequence[Ruled], full: bool) -> None:
    """How many statements and claims are decided; with `full` the statements of the paper, then the claims that were
    run."""
    from sinkscope.experiments import STATEMENTS, answers, is_synthetic

    found = answers(STATEMENTS, {each.question.name: each.verdicts for each in ruled}, _late(ruled))
    decided = [each for group in found.values() for each in group if each.decided]
    show(plain(f"of {sum(map(len, found.values()))} statements of the paper {len(decided)} are decided by runs"))
    _show_sums(ruled, True)
    if not full:
        note("--full lists every statement and claim; name an experiment for its own")
        return
    for part, group in found.items():
        show(Text(f"{part}\n", "bold"))
        show(table(OF_THE_PAPER, [_answered(each) for each in group], numbers_from=len(OF_THE_PAPER)))
        show(plain(""))
    ran = [Ruled(r.question, r.findings, r.verdicts) for r in ruled if any(map(_was_run, r.verdicts))]
    apart = [is_synthetic(each.question) for each in ran]
    for heading, synthetic in (("Claims that were run", False), ("On synthetic tasks", True)):
        group_ = [each for each, one in zip(ran, apart, strict=True) if one == synthetic]
        if group_:
            show(Text(f"{heading}\n", "bold"))
            show_verdicts(group_)
            show(plain(""))


def _answered(answer: Answer) -> tuple[str, ...]:
    from sinkscope.claims import cells

    head = (answer.said.says, answer.said.published or "–")
    why = f" ({answer.why})" if answer.why else ""
    beside = f"; other claims: {answer.beside}" if answer.beside else ""
    if answer.by is None:
        return (*head, "–", "–", "–", "–", f"{answer.words}{why}")
    verdict = answer.by.verdict
    part = "" if answer.by.primary else ", exploratory"
    name = f"{answer.by.question}: {verdict.claim.name}{part}"
    return (*head, *cells(verdict, "found", "cases"), verdict.shown_at_least, name, f"{answer.words}{why}{beside}")


def _was_run(verdict: Verdict) -> bool:
    return verdict.outcome != "not run at this scale"


def _show_sums(ruled: Sequence[Ruled], every: bool) -> None:
    """How many of each outcome, what it cost, which primary claims hold together, which claims came afterwards."""
    from sinkscope.claims import tally
    from sinkscope.experiments import holds_after_holm

    outcomes = tally(verdict for each in ruled for verdict in each.verdicts)
    cost = _cost(ruled)
    show(plain(f"\n{outcomes}; {_runs(int(cost['runs']))} of {hours(cost['seconds'])}"))
    held = holds_after_holm({each.question.name: each.verdicts for each in ruled})
    if every and held:
        kept = ", ".join(name for name, holds in held.items() if holds) or "none"
        show(plain(f"primary claims that hold after Holm's correction for {len(held)} of them: {kept}"))
    late = _late(ruled)
    if every and late:
        show(plain(f"claims stated after their first run: {len(late)} (`verdict NAME` and --json name them)"))
    for each in [] if every else ruled:
        for claim, told in _stated(each):
            when = "" if told.when in ("beforehand", "not known") else f", {told.when}"
            show(plain(f"{told.said}{when}: {claim}"))
    gone = [(each.question.name, one) for each in ruled for one in each.question.withdrawn]
    if every and gone:
        show(plain(f"claims that were withdrawn: {len(gone)} (`verdict NAME` and --json say why)"))
    for _, one in [] if every else gone:
        show(plain(f"withdrawn: {one.statement} ({one.reason})"))


def _late(ruled: Iterable[Ruled]) -> set[tuple[str, str]]:
    """The questions and names of claims that were stated after their first run."""
    return {(each.question.name, claim) for each in ruled for claim, told in _stated(each) if told.when == "afterwards"}


def _stated(ruled: Ruled) -> Iterator[tuple[str, Stated]]:
    """When each claim of a question was stated and first tried; of those that nothing is known of nothing."""
    from sinkscope.experiments import stated

    for assertion in ruled.question.assertions:
        told = stated(ruled.question, assertion, ruled.findings)
        if told.said:
            yield assertion.claim.name, told


def _cost(ruled: Sequence[Ruled]) -> dict[str, float]:
    """How many runs all questions have together, and how long they took: one that several read counts once."""
    runs = [run for each in ruled if each.findings for seeds in each.findings.runs.values() for run in seeds.values()]
    shared = {run.run: run.seconds for run in runs}
    return {"runs": len(shared), "seconds": math.fsum(shared.values())}


def _described(ruled: Sequence[Ruled], records: Known, every: bool) -> dict[str, Any]:
    from sinkscope.experiments import STATEMENTS, after_holm, answers, holds_after_holm, stated

    judged = {each.question.name: each.verdicts for each in ruled}
    verdicts = [
        {
            "experiment": each.question.name,
            "primary": not index,
            **verdict.to_dict(),
            "stated": asdict(stated(each.question, assertion, each.findings)),
        }
        for each in ruled
        for index, (assertion, verdict) in enumerate(zip(each.question.assertions, each.verdicts, strict=True))
    ]
    return {
        "scale": records.scale,
        "paper": _paper(answers(STATEMENTS, judged, _late(ruled))) if every else [],
        "verdicts": verdicts,
        "withdrawn": [
            {"experiment": each.question.name, **vars(gone)} for each in ruled for gone in each.question.withdrawn
        ],
        "costs": {each.question.name: each.findings.cost for each in ruled if each.findings is not None},
        "cost": _cost(ruled),
        "notes": list(records.notes),
        "after_holm": holds_after_holm(judged),
        "p_after_holm": after_holm(judged),
    }


def _paper(found: dict[str, list[Answer]]) -> list[dict[str, Any]]:
    return [{"part": part, **each.to_dict()} for part, group in found.items() for each in group]
