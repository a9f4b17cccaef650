"""The first part of the study's page: what the paper says, and the claims of ours that bear on it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from sinkscope.experiments import Judged
from sinkscope.report.experiments import ExperimentEntry
from sinkscope.report.experiments.names import effect, sizes
from sinkscope_replication.page.markdown import escaped, table
from sinkscope_replication.paper import NOT_RUN, STATEMENTS, Part, Said, parts, unanswered

COLUMNS = ("the paper says", "published", "our claim", "ours (95 % interval)", "seeds", "verdict", "by")
BESIDE = ("asks", "source", "primary claim", "ours (95 % interval)", "seeds", "could show", "verdict", "by")


def judged(entries: Sequence[ExperimentEntry], scale: str) -> Judged:
    """The verdicts at a scale, by question."""
    return {each.name: [one.verdict for one in each.claims] for each in entries if each.scale == scale and each.claims}


def paper(made: Judged, scale: str, apart: Container[str] = ()) -> Iterator[str]:
    """A table for each part of the paper: a row for each claim that bears on a statement and was run.

    `apart`: questions that have a place of their own.
    """
    for part, group in STATEMENTS.items():
        yield f"### {part}\n"
        yield f"{table(COLUMNS, [row for said in group for row in _rows(said, made, scale)])}\n"
    left = [one for one in unanswered(STATEMENTS, made) if one.question not in apart]
    if left:
        yield "### Further claims that cite the paper\n"
        rows = [(escaped(one.verdict.claim.statement), one.verdict.said, _link(one.question, scale)) for one in left]
        yield f"{table(('claim', 'verdict', 'by'), rows)}\n"


def beside(entries: Sequence[ExperimentEntry]) -> str:
    """One row per primary claim of these experiments."""
    rows = []
    for each in entries:
        verdict = each.claims[0].verdict
        found = (effect(verdict), sizes(verdict), verdict.shown_at_least, verdict.said)
        asked = (escaped(each.asks), escaped(each.source), escaped(verdict.claim.statement))
        rows.append((*asked, *found, _link(each.name, each.scale)))
    return table(BESIDE, rows)


def _rows(said: Said, made: Judged, scale: str) -> Iterator[tuple[str, ...]]:
    head = (f"{escaped(said.says)} ({escaped(said.place)})", escaped(said.published) or "–")
    found = parts(said, made)
    ran = [part for part in found if part.verdict.outcome != NOT_RUN]
    if not ran:
        why = f"by theory: {said.theory}" if said.theory else said.beyond or NOT_RUN
        yield (*head, "–", "–", "–", escaped(why), _link(found[0].question, scale) if found else "–")
        return
    for place, part in enumerate(ran):
        yield (*(("", "") if place else head), *_claim(part, scale))


def _claim(part: Part, scale: str) -> tuple[str, ...]:
    verdict = part.verdict
    name = f"{escaped(verdict.claim.name)}{'' if part.primary else ' (exploratory)'}"
    return name, effect(verdict), sizes(verdict), verdict.said, _link(part.question, scale)


def _link(name: str, scale: str) -> str:
    return f"[{name}](#{scale}-{name})"
