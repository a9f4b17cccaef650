"""The result of an experiment as a paragraph, built from its verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.report.experiments.entry import ExperimentEntry, Judged
from sinkscope.report.experiments.names import counted, effect, number, sizes
from sinkscope.statistics.rules import TOO_FEW

MOST = 3  # claims of one outcome that are written in full
KINDS = {
    "reversed": "and the effect points the other way",
    "smaller than asked": "since the effect is smaller than it asks",
    "larger than asked": "since the effect is larger than it allows",
    "different": "since the two differ",
}


def paragraph(entry: ExperimentEntry) -> str:
    """Plain sentences on the outcome of the primary claim and of the others."""
    if not entry.claims:
        return ""
    first, *others = entry.claims
    sentences = [_primary(first)]
    for outcome, verb in (("supported", "Supported"), ("refuted", "Refuted")):
        if claims := _with_outcome(others, outcome):
            sentences.append(f"{verb} among the exploratory claims: {_listed(claims)}.")
        elif outcome == "supported" and others and _with_outcome(others, "inconclusive"):
            sentences.append("No exploratory claim is supported.")
    open_, absent = _with_outcome(others, "inconclusive"), _with_outcome(others, "not run at this scale")
    counts = [f"{counted(len(part), 'exploratory claim')} {what}"
              for part, what in ((open_, "undecided"), (absent, "without the runs they ask for")) if part]  # fmt: skip
    if counts:
        sentences.append(f"There {'is' if len(open_ or absent) == 1 else 'are'} {' and '.join(counts)}.")
    return " ".join(sentences)


def _primary(judged: Judged) -> str:
    verdict = judged.verdict
    primary = f"The primary claim, that {_lowered(verdict.claim.statement)},"
    if verdict.outcome == "not run at this scale":
        return f"{primary} has no runs that it could be judged on ({verdict.reason})."
    if verdict.kind == TOO_FEW:
        return f"{primary} has too few seeds to be judged: {sizes(verdict)}, where it asks for three."
    measured = f"{effect(verdict)}, from {sizes(verdict)} seeds"
    if verdict.outcome == "supported":
        return f"The primary claim holds: {_lowered(verdict.claim.statement)} (we find {measured})."
    if verdict.outcome == "refuted":
        return f"{primary} is refuted, {KINDS.get(verdict.kind, 'as it stands')} (we find {measured})."
    could = f"; these seeds could have shown {verdict.shown_at_least}" if verdict.least is not None else ""
    return f"{primary} is undecided: we find {measured}, where {verdict.claim.rule} is asked{could}."


def _listed(claims: Sequence[Judged]) -> str:
    verdicts = [each.verdict for each in claims]
    first = "; ".join(f"{_lowered(each.claim.statement)}, found {effect(each)}" for each in verdicts[:MOST])
    return first if len(claims) <= MOST else f"{first}; and {number(len(claims) - MOST)} more"


def _with_outcome(claims: Sequence[Judged], outcome: str) -> list[Judged]:
    return [judged for judged in claims if judged.verdict.outcome == outcome]


def _lowered(statement: str) -> str:
    """A statement inside a sentence, in lower case unless it begins with a name such as ReLU."""
    text = statement.rstrip(".")
    is_name = any(map(str.isupper, text.partition(" ")[0][1:]))
    return text if is_name else text[:1].lower() + text[1:]
