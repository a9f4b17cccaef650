"""Tables of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.experiments import Variation
from sinkscope.report.experiments.entry import FAILED, USUAL, ExperimentEntry, Judged, evidence
from sinkscope.report.experiments.names import cost, effect, in_words, number, sizes
from sinkscope.report.table import MISSING, Cell, PageTable

VERDICT_COLUMNS = ("experiment", "claim", "asked", "found", "models", "cost", "grade")
VERDICTS_WIDTH = "w56"  # the class of the table over all claims, whose rows are cards below this width


@dataclass(frozen=True)
class VerdictRow:
    """A row of the table over all experiments, with what the page's script filters it by."""

    cells: list[Cell]
    grade: str
    words: str


def figure(value: float | None) -> Cell:
    """A cell with a number."""
    return Cell(number(value), number=True)


def look_of(grade: str) -> str:
    """The class of a grade's pill. Grades also differ in their mark, not only in color."""
    return grade.replace(" ", "-")


def configurations(entry: ExperimentEntry) -> PageTable:
    """The fields in which the variations differ, with their values; no fields if they do not differ."""
    fields = list(dict.fromkeys(name for variation in entry.variations for name in variation.changes))
    rows = []
    for variation in entry.variations:
        values = [_value(entry, variation, name) for name in fields]
        published = [figure(variation.published.get(metric)) for metric in entry.published]
        rows.append([Cell(variation.label), *values, *published])
    columns = ["variation", *fields, *(f"published: {entry.title(metric)}" for metric in entry.published)]
    return PageTable(columns, rows, "Configurations")


def claim_numbers(entry: ExperimentEntry, judged: Judged, links: Mapping[tuple[str, int], str]) -> PageTable:
    """The numbers behind a claim, seed by seed: the effect, and the values that it is computed from."""
    reads = [(label, metric) for label, metrics in judged.reads.items() for metric in metrics]
    runs = {(label, run.seed): run for label, run in entry.runs}
    rows = []
    for seed, part in evidence(judged):
        values = []
        for label, metric in reads:
            run = runs.get((label, seed)) if seed is not None else None
            link = links.get((label, seed or 0), "")
            values.append(Cell(number(run[metric]) if run else MISSING, number=True, link=link))
        rows.append([Cell(part.case), figure(part.value), *values])
    columns = ["seed", "effect", *(f"{label}: {entry.title(metric)}" for label, metric in reads)]
    return PageTable(columns, rows, "Effect, seed by seed")


def runs_table(entry: ExperimentEntry, prefix: str) -> PageTable:
    """Every run: name, seed, status, final metrics, cost, why it diverged or failed; a button shows its curves."""
    wanted = dict.fromkeys([*entry.tabled, *USUAL])
    columns = [metric for metric in wanted if any(metric in run.metrics for _, run in entry.runs)]
    rows = []
    for index, (label, run) in enumerate(entry.runs):
        name = Cell(run.run or MISSING, look="run", id=f"{prefix}-r{index}")
        has_curves = run.curves and run.steps
        button = Cell("curves", look="button", id=str(index)) if has_curves else Cell(MISSING)
        spent = Cell(MISSING if run.status == FAILED else cost(run.seconds), number=True)
        status = Cell(run.status, look="" if run.status == "finished" else "odd")
        facts = [Cell(label), Cell(str(run.seed), number=True), name, status]
        rows.append([*facts, *(figure(run[metric]) for metric in columns), spent, button, Cell(run.reason)])
    head = ["variation", "seed", "run", "status", *map(entry.title, columns), "cost", "over training", "reason"]
    return PageTable(head, rows, "Runs", "runs")


def verdict_row(entry: ExperimentEntry, judged: Judged, place: str, several_scales: bool) -> VerdictRow:
    """The row of a claim; `place` is the id of its details."""
    verdict = judged.verdict
    name = f"{entry.name} ({entry.scale})" if several_scales else entry.name
    words = " ".join((name, entry.asks, verdict.claim.name, verdict.claim.statement, verdict.claim.source))
    cells = [
        Cell(name, link=place),
        Cell(verdict.claim.statement, link=place),
        Cell(str(verdict.claim.rule)),
        Cell(effect(verdict)),
        Cell(sizes(verdict) if verdict.value is not None else MISSING, number=True),
        Cell(cost(entry.seconds) if entry.findings else MISSING, number=True),
        Cell(
            verdict.grade,
            look=look_of(verdict.grade),
            note=verdict.graded.removeprefix(verdict.grade).strip(" ()"),
        ),
    ]
    return VerdictRow(cells, verdict.grade, words.lower())


def _value(entry: ExperimentEntry, variation: Variation, name: str) -> Cell:
    """A field's value, marked if the variation sets it."""
    if name in variation.changes:
        return Cell(in_words(variation.changes[name]), look="changed")
    value: Any = entry.shared.get(name)
    if value is None:
        value = entry.base
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return Cell(MISSING if value is None else in_words(value))
