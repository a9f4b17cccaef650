"""`python -m sinkscope_replication.frozen`: which verdicts are no longer what commit 6ca3717 said.

`verdicts.json` holds, for each claim of the study, its rule, the verdict, the effect with its interval, the runs and
the statement. Today's code judges the same runs again. Exits with 1 where a verdict moved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from sinkscope.experiments import verdicts, with_rows
from sinkscope_replication.questions import QUESTIONS

FROZEN = Path(__file__).parent / "verdicts.json"
DIGITS = 4
"""Significant digits that are frozen and compared."""

Cell = str | float | None
Rows = Mapping[str, tuple[Cell, ...]]  # by `question: claim`


def judged() -> dict[str, tuple[Cell, ...]]:
    """Each claim by `question: claim`: rule, verdict, effect, ends of its interval, runs, statement.

    An effect and its interval are logarithms where the rule asks for a ratio. Without runs they are None.
    """
    rows: dict[str, tuple[Cell, ...]] = {}
    for question in QUESTIONS.values():
        for verdict in verdicts(question, with_rows(question, "nano", None), "nano"):
            low, high = verdict.interval or (None, None)
            effect, *ends = map(rounded, (verdict.residual, low, high))
            runs = " and ".join(map(str, verdict.n)) or str(len(verdict.evidence))
            key = f"{question.name}: {verdict.claim.name}"
            rows[key] = (str(verdict.claim.rule), verdict.said, effect, *ends, runs, verdict.claim.statement)
    return rows


def frozen() -> dict[str, tuple[Cell, ...]]:
    """What was said."""
    stored = json.loads(FROZEN.read_text(encoding="utf-8"))
    return {key: tuple(cells) for key, *cells in stored["rows"]}


def rounded(value: float | None) -> Cell:
    """A number with the digits that are compared; NaN and infinities as text, as JSON has neither."""
    if value is None:
        return None
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def moved(before: Rows, after: Rows) -> dict[str, tuple[tuple[Cell, ...], tuple[Cell, ...]]]:
    """What is not as it was, before and after; () where it is gone."""
    pairs = {key: (cells, after.get(key, ())) for key, cells in before.items()}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
