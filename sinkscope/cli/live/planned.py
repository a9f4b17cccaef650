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
    question: Question, scale: str, seeds: int | None, workers: int, results: Path, reuse: bool, as_json: bool
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
        "seeds": deciding(question, seeds),
    }
    if as_json:
        show_json(facts)
        return
    rows = [
        ("runs to train", f"{found.runs} ({len(question.variations)} variations)"),
        ("taken from records", f"{found.reused}" if reuse else "none (--reuse takes those that are there)"),
        ("hours", "not known: no like run has a record" if hours is None else f"about {hours:.1f}"),
        ("disk", "not known" if found.disk is None else f"about {found.disk / 2**20:.0f} MiB"),
    ]
    show(table(("what it would take", ""), rows, numbers_from=2))
    if short := deciding(question, seeds):
        show(plain(short))
    show(plain(ABOUT))


def planned(question: Question, scale: str, seeds: int | None, workers: int, results: Path, reuse: bool) -> Expected:
    """What the runs of a question would take.

    Raises `InputError` for fewer than one worker, and for a record of the question that cannot be read.
    """
    from sinkscope.experiments import expected, known

    if workers < 1:
        raise InputError(f"workers = {workers}: at least 1")
    return expected(question, scale, known(question, scale, results), seeds, reuse)


def deciding(question: Question, seeds: int | None = None) -> str:
    """Which claims the runs asked for cannot decide, whatever they show; empty where they can decide all."""
    from sinkscope.experiments import Shares, labels_read
    from sinkscope.statistics.claims import Count, Size

    short, early = [], []
    for assertion in question.assertions:
        rule = assertion.claim.rule
        assert isinstance(rule, Count | Size)
        single = [(label,) for label in labels_read(question, assertion)]
        groups = assertion.effect.groups if isinstance(assertion.effect, Shares) else single
        planned = [sum(len(question.seeds_of(label)) for label in group) for group in groups]
        if not rule.can_decide(*planned):
            short.append(assertion.claim.name)
        elif seeds is not None and seeds < max(len(question.seeds_of(each)) for group in groups for each in group):
            early.append(assertion.claim.name)
    claims = len(question.assertions)
    said = []
    if short:
        names = ", ".join(f"'{name}'" for name in short)
        said.append(
            f"the question's seeds can never decide {len(short)} of {claims} claims ({names}): fix more of them"
        )
    if early:
        said.append(f"{len(early)} of {claims} claims stay open until all of the question's seeds are run")
    return "; ".join(said)
