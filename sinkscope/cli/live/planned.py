"""`sinkscope experiment run --plan`: what the runs of a question would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError
from sinkscope.report.terminal import plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.experiments import Expected, Question

ABOUT = (
    "hours are those that like runs took, by their records, or steps at their pace; a run whose folder is there is not "
    "trained again, which is known only when its text is prepared"
)


def show_planned(
    question: Question, scale: str, seeds: int, workers: int, results: Path, reuse: bool, as_json: bool
) -> None:
    """Runs, hours and bytes of disk of a question, on the terminal or as JSON.

    Raises `InputError` for fewer than one worker, and for a record of the question that cannot be read.
    """
    found = planned(question, scale, seeds, workers, results, reuse)
    hours = None if found.seconds is None else found.seconds / 3600 / workers
    facts: dict[str, Any] = {
        "experiment": question.name,
        "scale": scale,
        "runs": found.runs,
        "reused": found.reused,
        "hours": hours,
        "disk_bytes": found.disk,
        "seeds": deciding(question, scale, seeds),
    }
    if as_json:
        show_json(facts)
        return
    rows = [
        ("runs to train", f"{found.runs} ({len(question.variations)} variations, {seeds} seeds)"),
        ("taken from records", f"{found.reused}" if reuse else "none (--reuse takes those that are there)"),
        ("hours", "not known: no like run has a record" if hours is None else f"about {hours:.1f}"),
        ("disk", "not known" if found.disk is None else f"about {found.disk / 2**20:.0f} MiB"),
    ]
    show(table(("what it would take", ""), rows, numbers_from=2))
    show(plain(deciding(question, scale, seeds)))
    show(plain(ABOUT))


def planned(question: Question, scale: str, seeds: int, workers: int, results: Path, reuse: bool) -> Expected:
    """What the runs of a question would take.

    Raises `InputError` for fewer than one worker, and for a record of the question that cannot be read.
    """
    from sinkscope.experiments import expected, known

    if workers < 1:
        raise InputError(f"workers = {workers}: at least 1")
    return expected(question, scale, known(question, scale, results), seeds, reuse)


def deciding(question: Question, scale: str, seeds: int | None = None) -> str:
    """How many of a question's claims so many seeds can decide under their rules, and how many seeds decide all."""
    from sinkscope.statistics.rules import AGREEING

    asked = [each.first_seed(scale) + int(getattr(each.claim.rule, "seeds", 1)) for each in question.assertions]
    if not asked:
        return "no claim is judged"
    steps = [seeds, max(asked)] if seeds is not None and seeds < max(asked) else [max(asked)]
    steps = [min(asked), *steps] if seeds is None and min(asked) < max(asked) else steps
    said = []
    for count in steps:
        can = sum(each <= count for each in asked)
        said.append(f"--seeds {count} can {'never ' if not can else ''}decide {can or 'any'} of {len(asked)} claims")
    return f"{'; '.join(said)} (seeds that all give the same number decide from {AGREEING} on)"
