"""What a section of the report card finds: rows with a number, its interval, a word of trials, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sinkscope.errors import InputError
from sinkscope.statistics import Interval, mean_interval

ADVISED = ("free", "small")
"""The words that are advice enough; of anything else a row only says what it costs."""
ORDER = ("breaks", "costs", "cannot tell", "small", "free")  # the worst first


@dataclass(frozen=True)
class Row:
    """One finding.

    Args:
        key: Its name, which no other row of the section has, and by which two cards are compared.
        finding: What was looked at, in words.
        number: The number with its interval over texts; None for what is no number.
        unit: Of the number.
        n: Number of texts.
        word: free, small, costs, breaks or cannot tell (`trials.grade`), and why; empty where nothing is graded.
        advice: What to do, for what is free or small alone, or a fact that is known without a trial.
        bytes: What a cache holds for a text after its context; `of_16` is their share of a 16-bit cache.
        values: The number of each text, for paired comparisons with another card.
        flags: Names of `FLAGS` that it raises, besides its word.
    """

    key: str
    finding: str
    number: Interval | None = None
    unit: str = ""
    n: int = 0
    word: str = ""
    why: str = ""
    advice: str = ""
    bytes: float | None = None
    of_16: float | None = None
    values: tuple[float, ...] = ()
    flags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON-able data; NaN becomes None."""
        found: dict[str, Any] = {"key": self.key, "finding": self.finding}
        if self.number is not None:
            ends = (self.number.value, self.number.low, self.number.high)
            found |= dict(zip(("value", "low", "high"), map(_finite, ends), strict=True))
            found |= {"unit": self.unit, "n": self.n}
        for name in ("word", "why", "advice", "bytes", "of_16"):
            if (value := getattr(self, name)) not in ("", None):
                found[name] = value
        if self.values:
            found["values"] = [_finite(value) for value in self.values]
        return found | ({"flags": list(self.flags)} if self.flags else {})

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Row:
        """What `to_json` gave."""
        number = None
        if "value" in data:
            number = Interval(*(_number(data[name]) for name in ("value", "low", "high")))
        return cls(
            key=data["key"],
            finding=data["finding"],
            number=number,
            unit=data.get("unit", ""),
            n=data.get("n", 0),
            word=data.get("word", ""),
            why=data.get("why", ""),
            advice=data.get("advice", ""),
            bytes=data.get("bytes"),
            of_16=data.get("of_16"),
            values=tuple(map(_number, data.get("values", ()))),
            flags=tuple(data.get("flags", ())),
        )

    def shown(self, *, unit: bool = True) -> str:
        """The number with its interval, in its unit."""
        if self.number is None:
            return ""
        if self.unit.startswith("%"):
            return f"{_percent(self.number)}{self.unit[1:]}"
        text = _nats(self.number, "+" if self.unit.startswith("nats lost") else "")
        return f"{text} {self.unit}" if unit else text


@dataclass(frozen=True)
class Answered:
    """What a section found on one set of texts: `answer`, the first sentences of the card, and its rows.

    `lines`: command lines of engines, whose arm is a row of this section; `missing`: why it was not run.
    """

    answer: str = ""
    rows: tuple[Row, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON-able data."""
        found: dict[str, Any] = {"answer": self.answer, "rows": [row.to_json() for row in self.rows]}
        found |= {"facts": dict(self.facts)} if self.facts else {}
        return found | ({"not_run": self.missing} if self.missing else {})

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Answered:
        """What `to_json` gave."""
        rows = tuple(Row.of_json(row) for row in data["rows"])
        return cls(data["answer"], rows, data.get("facts", {}), data.get("not_run", ""))


def both(first: Row, other: Row | None, names: Sequence[str]) -> Row:
    """A row that was seen on two sets of texts: the first one's number, the worse of the two words, and what holds."""
    if other is None or not first.word:
        return first
    flags = tuple(dict.fromkeys((*first.flags, *other.flags)))
    if first.word == other.word:
        return replace(first, why="; ".join(filter(None, (first.why, "holds on both"))), flags=flags)
    worse = min((first, other), key=lambda row: ORDER.index(row.word))
    said = f"{first.word} on {names[0]}, {other.word} on {names[1]}"
    return replace(first, word=worse.word, why=said, flags=flags, advice=first.advice if _advised(worse) else "")


def _advised(row: Row) -> bool:
    return row.word in ADVISED


def difference(new: Row, old: Row) -> Interval:
    """By how much a row's number is larger than in another card, on the same texts.

    Raises `InputError` where one has no number for each text.
    """
    if not new.values or len(new.values) != len(old.values):
        raise InputError(f"'{new.key}' has {len(new.values)} values here and {len(old.values)} there: not comparable")
    return mean_interval(np.asarray(new.values) - np.asarray(old.values))


def _nats(found: Interval, sign: str) -> str:
    """Two digits that count: 0.039 (0.031–0.047)."""
    size = max((abs(v) for v in (found.value, found.low, found.high) if math.isfinite(v)), default=0.0)
    digits = 4 if size < 0.1 else 3 if size < 1 else 2
    value = f"{found.value:{sign}.{digits}f}"
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return value
    return f"{value} ({found.low:{sign}.{digits}f} to {found.high:{sign}.{digits}f})"


def _percent(found: Interval) -> str:
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return f"{found.value:.0f} %"
    return f"{found.value:.0f} % ({found.low:.0f} to {found.high:.0f})"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
