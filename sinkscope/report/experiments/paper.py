"""The first section of the page of experiments: what the paper says, and the claim of ours that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sinkscope.experiments import QUESTIONS, STATEMENTS, Answer, answers
from sinkscope.experiments.paper import NOT_RUN
from sinkscope.report.experiments.entry import Entry, late_in
from sinkscope.report.experiments.names import counted, effect, sizes
from sinkscope.report.experiments.tables import Cell, linked, pill, table, text
from sinkscope.report.page import Section, Widget

TITLE = "What the paper says"
COLUMNS = ("the paper says", "published", "ours (95 % interval)", "seeds", "could show", "verdict")
ABOUT = (
    "A row is a statement of Gu et al. 2025 that runs were judged on, and leads to the claim that answers it. "
    "Published numbers are the paper's, of other models; ours is the effect that the claim asks for, in the units of "
    "its measure."
)


def paper_section(entries: Sequence[Entry], places: Mapping[int, str]) -> list[Section]:
    """A row for each statement that runs were judged on; no section where there is none."""
    known = {each.name: each for each in entries if _is_ours(each)}
    judged = {name: [one.verdict for one in each.claims] for name, each in known.items()}
    found = [each for group in answers(STATEMENTS, judged, late_in(known.values())).values() for each in group]
    tried = [each for each in found if each.by is not None and each.by.verdict.outcome != NOT_RUN]
    if not tried:
        return []
    left = len(found) - len(tried)
    more = (
        f"{counted(left, 'further statement')} of the paper: not run yet, a matter of theory, or beyond this hardware."
    )
    rows = table(COLUMNS, [_row(each, known, places) for each in tried], TITLE, "verdicts")
    note = f'<p class="note">{more}</p>' if left else ""
    return [Section(TITLE, ABOUT, widget=Widget(f"{rows}{note}", {}))]


def _is_ours(entry: Entry) -> bool:
    """Whether an entry is of a question with a name, and not another that somebody called the same."""
    question = QUESTIONS.own.get(entry.name)
    wanted = [assertion.claim for assertion in question.assertions] if question else None
    return wanted == [one.verdict.claim for one in entry.claims]


def _row(answer: Answer, entries: Mapping[str, Entry], places: Mapping[int, str]) -> list[Cell]:
    by = answer.by
    assert by is not None
    entry = entries[by.question]
    index = next(place for place, one in enumerate(entry.claims) if one.verdict is by.verdict)
    told = linked(text(answer.said.says).html, f"{places[id(entry)]}-c{index}")
    part = "" if by.primary else " (exploratory)"
    verdict = by.verdict
    return [
        Cell(told),
        text(answer.said.published or "–"),
        text(effect(verdict)),
        text(sizes(verdict)),
        text(verdict.shown_at_least),
        Cell(f"{pill(verdict.outcome)}{text(f' {verdict.kind}{part}').html}"),
    ]
