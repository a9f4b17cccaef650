"""The first part of the page of findings, and of the README: what the paper says, and what we found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence

from sinkscope.experiments import STATEMENTS, Answer, after_holm, answers, unanswered
from sinkscope.experiments.findings import Judged
from sinkscope.report.experiments.entry import Entry
from sinkscope.report.experiments.names import effect, number, sizes
from tools.pages.markdown import escaped, table

COLUMNS = ("the paper says", "published", "ours (95 % interval)", "seeds", "could show", "verdict", "by")
BESIDE = ("asks", "source", "primary claim", "ours (95 % interval)", "seeds", "could show", "verdict", "by")
SHORT = ("the paper says", "published", "ours (95 % interval)", "verdict")
TOGETHER = ("question", "primary claim", "p", "p after Holm", "at 5 %")


def judged(entries: Sequence[Entry], scale: str) -> Judged:
    """The verdicts at a scale, by question."""
    return {each.name: [one.verdict for one in each.claims] for each in entries if each.scale == scale and each.claims}


def paper(made: Judged, scale: str, apart: Container[str] = (), late: Container[tuple[str, str]] = ()) -> Iterator[str]:
    """A table for each part of the paper: one row per statement. `apart`: questions that have a place of their own."""
    found = answers(STATEMENTS, made, late)
    every = [each for group in found.values() for each in group]
    counts = Counter(each.words.partition(":")[0] for each in every)
    told = ", ".join(f"{many} {words}" for words, many in counts.most_common())
    yield f"Of {len(every)} rows: {told}.\n"
    for part, group in found.items():
        yield f"### {part}\n"
        yield f"{table(COLUMNS, [_answered(each, scale) for each in group])}\n"
    left = [one for one in unanswered(found, made) if one.question not in apart]
    if left:
        yield "### Further claims that cite the paper\n"
        rows = [(escaped(one.verdict.claim.statement), one.verdict.said, _link(one.question, scale)) for one in left]
        yield f"{table(('claim', 'verdict', 'by'), rows)}\n"


def beside(entries: Sequence[Entry]) -> str:
    """The primary claims of these experiments, a row each."""
    rows = []
    for each in entries:
        verdict = each.claims[0].verdict
        found = (effect(verdict), sizes(verdict), verdict.shown_at_least, verdict.said)
        asked = (escaped(each.asks), escaped(each.source), escaped(verdict.claim.statement))
        rows.append((*asked, *found, _link(each.name, each.scale)))
    return table(BESIDE, rows)


def together(made: Judged, scale: str) -> str:
    """The primary claims that have a p-value, the smallest first, corrected for each other."""
    corrected = sorted(after_holm(made).items(), key=lambda pair: pair[1])
    rows = [
        (
            _link(name, scale),
            escaped(made[name][0].claim.statement),
            number(made[name][0].p),
            number(p),
            "holds" if p <= 0.05 else "does not hold",
        )
        for name, p in corrected
    ]
    return table(TOGETHER, rows)


def first_rows(made: Judged, late: Container[tuple[str, str]] = ()) -> str:
    """The statements of the abstract that runs have decided or tried, for the README."""
    part = next(iter(STATEMENTS))
    found: Mapping[str, list[Answer]] = answers({part: STATEMENTS[part]}, made, late)
    rows = []
    for each in found[part]:
        ours = effect(each.by.verdict) if each.by is not None else "–"
        rows.append(
            (
                escaped(each.said.says),
                escaped(each.said.published) or "–",
                ours,
                "; ".join((f"{each.words}{_measure(each)}", *each.caveats)),
            )
        )
    return table(SHORT, rows)


def _answered(each: Answer, scale: str) -> tuple[str, ...]:
    said = (f"{escaped(each.said.says)} ({escaped(each.said.place)})", escaped(each.said.published) or "–")
    words = f"**{each.words}**" if each.decided else each.words
    others = f"other claims: {each.beside}" if each.beside else ""
    more = "".join(f"; {escaped(part)}" for part in (each.why.replace("`", "'"), others) if part)
    if each.by is None:
        return (*said, "–", "–", "–", f"{words}{more}", "–")
    verdict = each.by.verdict
    name = f"{_link(each.by.question, scale)}, {escaped(verdict.claim.name)}{_measure(each)}"
    return (*said, effect(verdict), sizes(verdict), verdict.shown_at_least, f"{words}{more}", name)


def _measure(each: Answer) -> str:
    return "" if each.by is None or each.by.primary else " (exploratory)"


def _link(name: str, scale: str) -> str:
    return f"[{name}](#{scale}-{name})"
