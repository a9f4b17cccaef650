"""When a claim was stated, and when the first run that it counts was made: told without git, from a committed table."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sinkscope.experiments.contrasts import Contrast
from sinkscope.experiments.equal_loss import SeedWise
from sinkscope.experiments.findings import Findings, labels_read
from sinkscope.experiments.question import Assertion, Question

TABLE = Path(__file__).parent / "statements.json"  # written by `python -m tools.pages.statements`
When = Literal["beforehand", "afterwards", "with its first runs", "not known"]


@dataclass(frozen=True)
class Stated:
    """A claim's `commit` and its `date`, the day of its first run (`first_run`, "" without one), and what follows.

    Dates are ISO 8601 in UTC. A run that a record does not date was made before the commit that brought the record, so
    that a claim of the same commit is not shown to be older: `when` says "with its first runs". A date that no clock
    can have said counts as none.
    """

    commit: str
    date: str
    first_run: str
    when: When

    @property
    def said(self) -> str:
        """In a phrase; "" for a claim that nothing is known of."""
        if not self.commit:
            return ""
        runs = f", first run {self.first_run[:10]}" if self.first_run else ", no run yet"
        return f"stated {self.date[:10]} ({self.commit}){runs}"


def stated(question: Question, assertion: Assertion, findings: Findings | None) -> Stated:
    """When a claim was stated and first tried; "not known" for a user's own, and for one that has no run yet."""
    commit, date = _table().get("claims", {}).get(question.name, {}).get(key_of(assertion), ("", ""))
    made = sorted(_made(assertion, question, findings))
    if not commit or not made:
        return Stated(commit, date, made[0][0] if made else "", "not known")
    first, by_record = made[0]
    if date > first:
        when: When = "afterwards"
    elif date == first and by_record:
        when = "with its first runs"
    else:
        when = "beforehand"
    return Stated(commit, date, first, when)


def key_of(assertion: Assertion) -> str:
    """What makes a claim this one: its words, however spelled, the number that is asked for, and what it refuses.

    What it refuses is part of it, since a premise that is added when runs have been seen can turn a verdict.
    """
    effect = assertion.effect
    premise = effect.refusal if isinstance(effect, SeedWise) else ""
    return key(assertion.claim.statement, assertion.claim.rule.asked, premise)


def key(statement: str, asked: float, refusal: str = "") -> str:
    """12 hex digits for a statement, its number and what is refused."""
    words = re.sub(r"(?<=[a-z])is(?=(e|ed|es|er|ers|ing|ation|ations)\b)", "iz", " ".join(statement.lower().split()))
    premise = f" unless {refusal}" if refusal else ""
    return hashlib.sha256(f"{words} {asked:g}{premise}".encode()).hexdigest()[:12]


def _made(assertion: Assertion, question: Question, findings: Findings | None) -> list[tuple[str, bool]]:
    """When the runs that count for a claim began, and whether that is the day of a record.

    Of a sum of means those do not count that were made before its metric was kept.
    """
    runs, effect = findings.runs if findings else {}, assertion.effect
    first = assertion.first_seed(findings.scale) if findings else 0
    counted = [
        run
        for label in labels_read(question, assertion)
        for seed, run in runs.get(label, {}).items()
        if seed >= first
        and not (isinstance(effect, Contrast) and math.isnan(effect.of(label, run)) and not run.diverged)
    ]
    recorded: dict[str, str] = _table().get("runs", {})
    return [
        (run.began, False) if run.began else (recorded[run.run], True)
        for run in counted
        if run.began or run.run in recorded
    ]


@cache
def _table() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {}
