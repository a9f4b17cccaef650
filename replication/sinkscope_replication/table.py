"""The table of the README, from the records: `make pages` fills it in."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from sinkscope.errors import InputError
from sinkscope.experiments import (
    Findings,
    FromRecipe,
    Shares,
    keys,
    labels_read,
    on_processor,
    read_rows,
    verdicts,
)
from sinkscope.statistics.claims import Verdict
from sinkscope_replication.order import hours
from sinkscope_replication.paper import ROWS, Row
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.records import RECORDS, RELEASED, findings_of

HEAD = ("the paper says", "place", "published", "ours", "n", "grade")
PERCENT = ("sink", "slot", "strongest")
MASS = ("sink_mass", "slot_mass")
WITHOUT_UNIT = ("strongest_position",)


def table(rows: Sequence[Row] = ROWS) -> str:
    """The table as Markdown, with how many rows have each grade."""
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)])


def cells(row: Row) -> tuple[str, ...]:
    """The cells of a row. Raises `InputError` for a claim that there is not."""
    if not row.claim:
        models = released() if row.released else []
        number = str(len(models)) if models else "–"
        return row.says, row.place, row.published or "–", "; ".join(models) or "–", number, f"open: {row.beyond}"
    name, _, claim = row.claim.partition("/")
    question = QUESTIONS[name]
    findings = findings_of(name)
    verdict = next((each for each in verdicts(question, findings) if each.claim.name == claim), None)
    if verdict is None:
        raise InputError(f"row '{row.says}': experiment '{name}' has no claim '{claim}'")
    n = " and ".join(map(str, verdict.n)) if any(verdict.n) else "–"
    graded = grade(row, verdict, findings)
    return (
        row.says,
        row.place,
        row.published or "–",
        ours(row, verdict, findings),
        "1" if question.one_model else n,
        graded,
    )


def released() -> list[str]:
    """The sink rate of each released model that was measured, and the number of texts, which are of one model."""
    words = []
    for path in sorted(RELEASED.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        rate = record["parts"]["rate/text"]
        words.append(f"{rate['rate']:.1f} % in {record['model'].partition('.')[0]} ({rate['n']} texts)")
    return words


def ours(row: Row, verdict: Verdict, findings: Findings | None) -> str:
    """Means in the published unit, and what decides: "8.9 and 1.3 %: 13 of 13 against 1 of 6"."""
    means = [mean(findings, label, metric) for label, metric in row.ours] if findings else []
    numbers = [f"{value:.3g}" for value in means if not math.isnan(value)]
    if len(numbers) < len(row.ours):
        return "–"
    words = f"{', '.join(numbers[:-1])} and {numbers[-1]}" if len(numbers) > 1 else numbers[0]
    metric = row.ours[0][1]
    unit = " %" if metric.startswith(PERCENT) and not metric.startswith(WITHOUT_UNIT) else ""
    unit += " of mass" if metric.startswith(MASS) else ""
    one_model = QUESTIONS[row.claim.partition("/")[0]].one_model
    found = f"{verdict.k[0]} of {verdict.n[0]}" if one_model else verdict.found  # without an interval
    return f"{words}{unit}: {found}{row.by and ' '}{row.by}"


def mean(findings: Findings, label: str, metric: str) -> float:
    """The mean of a metric over the question's runs of a variation; NaN without any."""
    seeds = QUESTIONS[findings.question].seeds_of(label)
    values = [run[metric] for seed, run in findings.runs.get(label, {}).items() if seed in seeds]
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def grade(row: Row, verdict: Verdict, findings: Findings | None) -> str:
    """The grade; where it is open what would decide, with hours, and where it was not seen what differs."""
    reasons = verdict.reason.split("; ")
    loss = "".join(f"; {part}" for part in reasons if part.startswith("losses differ"))
    if row.stays_open:
        return f"open: {row.stays_open}{loss}"
    if verdict.grade == "not seen":
        return f"**not seen**{': ' if row.differs else ''}{row.differs}{loss}"
    if verdict.grade != "open":
        return f"**{verdict.grade}**{loss}"
    return f"open: {missing(row, verdict, findings, reasons)}{loss}"


def missing(row: Row, verdict: Verdict, findings: Findings | None, reasons: Sequence[str]) -> str:
    """What would decide an open claim: the runs that its file asks for, or more models than these, and their hours."""
    name, _, claim = row.claim.partition("/")
    question = QUESTIONS[name]
    assertion = next(each for each in question.assertions if each.claim.name == claim)
    groups = (
        assertion.effect.groups
        if isinstance(assertion.effect, Shares)
        else [(label,) for label in labels_read(question, assertion)]
    )
    planned = [sum(len(question.seeds_of(label)) for label in group) for group in groups]
    if not assertion.claim.rule.can_decide(*planned):  # type: ignore[union-attr]
        enough = f"; {verdict.decides_at} would" if verdict.decides_at else ""
        return f"{' and '.join(map(str, planned))} models cannot decide{enough}"
    if early := next((part for part in reasons if part.endswith(" runs")), ""):
        there, _, asked = early.removesuffix(" runs").partition(" of ")
        if not asked:  # "no runs"
            there, asked = "0", str(sum(planned))
        if verdict.undecidable:
            return f"{int(asked) - int(there)} of {asked} missing cannot decide it"
        cost = hours_missing(name, tuple(label for group in groups for label in group))
        return f"{int(asked) - int(there)} of {asked} missing" + (f", {cost:.1f} h" if cost else "")
    if not (verdict.decides_at and findings):
        return reasons[0]
    more = [(verdict.decides_at - n) * _seconds(findings, group) for n, group in zip(verdict.n, groups, strict=True)]
    each = " each" if len(verdict.n) > 1 else ""
    return f"{verdict.decides_at} models{each} would decide, {sum(more) / 3600:.1f} h"


def _seconds(findings: Findings, labels: Sequence[str]) -> float:
    """What a run of these variations took on a processor, on average; on a GPU where no other is known."""
    runs = [run for label in labels for run in findings.runs.get(label, {}).values()]
    known = [run.seconds for run in runs if on_processor(run)] or [run.seconds for run in runs]
    return math.fsum(known) / len(known)


@cache
def hours_missing(name: str, labels: tuple[str, ...]) -> float:
    """Core-hours of the runs of these variations that the records lack; runs on this machine alone do not count."""
    question = QUESTIONS[name]
    read = tuple(variation for variation in question.variations if variation.label in labels)
    return hours(replace(question, variations=read), RECORDS.parent)


def counts() -> str:
    """What there is, in a sentence."""
    rows = read_rows(RECORDS)
    of_tasks = {
        key
        for question in QUESTIONS.values()
        if not isinstance(question.base, FromRecipe)
        for key in keys(question, "nano").values()
    }
    on_tasks = sum(key in of_tasks for key, _ in rows)
    hashes = {name: question.registration.sha256 for name, question in QUESTIONS.items() if question.registration}
    hashed = sum(
        any(note.get("sha256") == hashes.get(name) for name, note in run.registered.items()) for run in rows.values()
    )
    untrained = sum(run.steps[-1:] == (1,) for run in rows.values())  # what a tuning starts from, read after one step
    claims = sum(len(question.assertions) for question in QUESTIONS.values())
    return (
        f"{len(rows) - on_tasks - untrained} models were trained on text, and {on_tasks} on two synthetic tasks; "
        f"{hashed} of them carry the hash of a question's file as it is now. {len(QUESTIONS)} questions make {claims} "
        "claims."
    )
