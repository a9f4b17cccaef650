"""What an experiment says, as a paragraph: made of its verdicts, so that it changes with them."""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.report.experiments.entry import ExperimentEntry, Judged
from sinkscope.report.experiments.names import counted, effect, number, sizes
from sinkscope.statistics.rules import TOO_FEW

MOST = 3  # claims of one outcome that are told in full
KINDS = {
    "reversed": "and the effect points the other way",
    "smaller than asked": "since the effect is smaller than it asks",
    "larger than asked": "since the effect is larger than it allows",
    "different": "since the two differ",
}


def paragraph(entry: ExperimentEntry) -> str:
    """Plain sentences: what became of the primary claim, and of the others."""
    if not entry.claims:
        return ""
    first, *others = entry.claims
    told = [_primary(first)]
    for outcome, verb, found in (
        ("supported", "Supported", _of(others, "supported")),
        ("refuted", "Refuted", _of(others, "refuted")),
    ):
        if found:
            told.append(f"{verb} among the exploratory claims: {_listed(found)}.")
        elif outcome == "supported" and others and _of(others, "inconclusive"):
            told.append("No exploratory claim is supported.")
    open_, absent = _of(others, "inconclusive"), _of(others, "not run at this scale")
    counts = [f"{counted(len(part), 'exploratory claim')} {what}"
              for part, what in ((open_, "undecided"), (absent, "without the runs they ask for")) if part]  # fmt: skip
    if counts:
        told.append(f"There {'is' if len(open_ or absent) == 1 else 'are'} {' and '.join(counts)}.")
    return " ".join(told)


def _primary(judged: Judged) -> str:
    verdict = judged.verdict
    says = f"that {_lowered(verdict.claim.statement)}"
    if verdict.outcome == "not run at this scale":
        return f"The primary claim, {says}, has no runs that it could be judged on ({verdict.reason})."
    if verdict.kind == TOO_FEW:
        return f"The primary claim, {says}, has too few seeds to be judged: {sizes(verdict)}, where it asks for three."
    found = f"{effect(verdict)}, from {sizes(verdict)} seeds"
    if verdict.outcome == "supported":
        return f"The primary claim holds: {_lowered(verdict.claim.statement)} (we find {found})."
    if verdict.outcome == "refuted":
        return f"The primary claim, {says}, is refuted, {KINDS.get(verdict.kind, 'as it stands')} (we find {found})."
    could = f"; these seeds could have shown {verdict.shown_at_least}" if verdict.least is not None else ""
    return f"The primary claim, {says}, is undecided: we find {found}, where {verdict.claim.rule} is asked{could}."


def _listed(found: Sequence[Judged]) -> str:
    told = "; ".join(f"{_lowered(each.verdict.claim.statement)}, found {effect(each.verdict)}" for each in found[:MOST])
    return told if len(found) <= MOST else f"{told}; and {number(len(found) - MOST)} more"


def _of(claims: Sequence[Judged], outcome: str) -> list[Judged]:
    return [judged for judged in claims if judged.verdict.outcome == outcome]


def _lowered(statement: str) -> str:
    """A statement amid a sentence; names that hold a capital further on, such as ReLU, stay."""
    text = statement.rstrip(".")
    is_name = any(map(str.isupper, text.partition(" ")[0][1:]))
    return text if is_name else text[:1].lower() + text[1:]
