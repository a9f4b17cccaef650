"""Tables of an experiment as HTML. Every text from outside is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

from sinkscope.experiments import Observed, Variation
from sinkscope.report import table as fitted
from sinkscope.report.experiments.entry import FAILED, USUAL, Entry, Judged, evidence
from sinkscope.report.experiments.names import cost, effect, number, said, sizes

MISSING = "–"
VERDICT_COLUMNS = ("experiment", "claim", "asked", "found", "models", "cost", "grade")
VERDICTS_FIT = "w56"  # the class of the table over all claims: narrower, and its rows are cards


@dataclass(frozen=True)
class Cell:
    """A cell: HTML that is safe already, and whether it stands to the right as numbers do."""

    html: str
    number: bool = False

    @property
    def plain(self) -> str:
        """What a reader sees of it."""
        return unescape(re.sub(r"<[^>]+>", " ", self.html)).strip()


def text(value: Any) -> Cell:
    """A cell of plain text."""
    return Cell(escape(str(value)))


def figure(value: float | None) -> Cell:
    """A cell with a number."""
    return Cell(number(value), number=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], label: str, kind: str = "") -> str:
    """A table whose rows become cards where it is wider than its place; the first cell of a row heads it."""
    made = list(rows)
    right = [bool(made) and all(row[index].number for row in made) for index in range(len(columns))]
    head = "".join(
        f'<th scope="col"{_side(side)}>{escape(column)}</th>' for column, side in zip(columns, right, strict=True)
    )
    body = "\n".join(f"<tr>{_cells(row, columns)}</tr>" for row in made)
    fit = fitted.fitting(columns, [[cell.plain for cell in row] for row in made], right)
    return (
        f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escape(label)}">'
        f'<table class="{fit}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def pill(grade: str) -> str:
    """A grade as a word with its mark; color is never the only difference."""
    return f'<span class="pill {grade.replace(" ", "-")}">{grade}</span>'


def configurations(entry: Entry) -> str:
    """The recipe's fields in which the variations differ, each with its value; empty where they do not differ."""
    fields = list(dict.fromkeys(name for variation in entry.variations for name in variation.changes))
    rows = []
    for variation in entry.variations:
        values = [_value(entry, variation, name) for name in fields]
        published = [figure(variation.published.get(metric)) for metric in entry.published]
        rows.append([text(variation.label), *values, *published])
    columns = ["variation", *fields, *(f"published: {entry.title(metric)}" for metric in entry.published)]
    return table(columns, rows, "Configurations")


def claim_numbers(entry: Entry, judged: Judged, links: Mapping[tuple[str, int], str]) -> str:
    """What decided a claim, seed by seed: the effect, and the values of the runs that it is made of."""
    reads = [(label, metric) for label, metrics in judged.reads.items() for metric in metrics]
    runs = {(label, run.seed): run for label, run in entry.runs}
    rows = []
    for seed, part in evidence(judged):
        values = []
        for label, metric in reads:
            run = runs.get((label, seed)) if seed is not None else None
            values.append(Cell(linked(number(run[metric]) if run else MISSING, links.get((label, seed or 0))), True))
        rows.append([text(part.case), figure(part.value), *values])
    columns = ["seed", "effect", *(f"{label}: {entry.title(metric)}" for label, metric in reads)]
    return table(columns, rows, "Effect, seed by seed")


def runs_table(entry: Entry, prefix: str) -> str:
    """Every run: name, seed, status, final metrics, seconds, why it diverged or failed; a button shows its curves."""
    wanted = dict.fromkeys([*entry.tabled, *USUAL])
    columns = [metric for metric in wanted if any(metric in run.metrics for _, run in entry.runs)]
    rows = []
    for index, (label, run) in enumerate(entry.runs):
        name = f'<span class="run" id="{prefix}-r{index}">{escape(run.run or MISSING)}</span>'
        button = f'<button type="button" data-run="{index}">curves</button>' if run.curves and run.steps else MISSING
        wording = [text(label), Cell(str(run.seed), True), Cell(name), Cell(_status(run))]
        spent = Cell(MISSING if run.status == FAILED else cost(run.seconds), True)
        rows.append([*wording, *(figure(run[metric]) for metric in columns), spent, Cell(button), text(run.reason)])
    head = ["variation", "seed", "run", "status", *map(entry.title, columns), "cost", "over training", "reason"]
    return table(head, rows, "Runs", "runs")


def verdict_row(entry: Entry, judged: Judged, place: str, several_scales: bool) -> str:
    """A row of the table over all experiments, which the page's script filters by its data."""
    verdict = judged.verdict
    models = sizes(verdict) if verdict.value is not None else MISSING
    spent = cost(entry.seconds) if entry.findings else MISSING
    name = f"{entry.name} ({entry.scale})" if several_scales else entry.name
    why = verdict.graded.removeprefix(verdict.grade).strip(" ()")
    reason = f'<span class="why">{escape(why)}</span>' if why else ""
    words = " ".join((name, entry.asks, verdict.claim.name, verdict.claim.statement, verdict.claim.source))
    cells = [
        Cell(linked(escape(name), place)),
        Cell(linked(escape(verdict.claim.statement), place)),
        text(verdict.claim.rule),
        Cell(escape(effect(verdict))),
        Cell(models, True),
        Cell(spent, True),
        Cell(f"{pill(verdict.grade)}{reason}"),
    ]
    marks = f'data-grade="{verdict.grade}" data-words="{escape(words.lower())}"'
    return f"<tr {marks}>{_cells(cells, VERDICT_COLUMNS)}</tr>"


def _cells(row: Sequence[Cell], columns: Sequence[str]) -> str:
    first, *rest = row
    named = zip(rest, columns[1:], strict=True)
    others = "".join(fitted.cell(cell.html, cell.plain, name, cell.number) for cell, name in named)
    return f'<th scope="row"{_side(first.number)}>{first.html}</th>{others}'


def _side(right: bool) -> str:
    return ' class="number"' if right else ""


def linked(html: str, place: str | None) -> str:
    """Markup that leads to a place of the page; without one, the markup itself."""
    return html if place is None else f'<a href="#{escape(place)}">{html}</a>'


def _status(run: Observed) -> str:
    return escape(run.status) if run.status == "finished" else f'<strong class="odd">{escape(run.status)}</strong>'


def _value(entry: Entry, variation: Variation, name: str) -> Cell:
    """A field's value, marked where the variation sets it."""
    if name in variation.changes:
        return Cell(f"<b>{escape(said(variation.changes[name]))}</b>")
    value: Any = entry.shared.get(name)
    if value is None:
        value = entry.base
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return text(MISSING if value is None else said(value))
