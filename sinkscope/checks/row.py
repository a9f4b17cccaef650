"""The findings of a section: rows with a number, its interval, a grade, and advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sinkscope.errors import InputError
from sinkscope.statistics import Interval, mean_interval

ADVISED = ("free", "small")
"""Grades that give advice; a row with another grade only shows the cost."""
ORDER = ("breaks", "costs", "cannot tell", "small", "free")  # worst first


@dataclass(frozen=True)
class Row:
    """One finding.

    Args:
        key: A name that is unique in the section; two cards are compared by it.
        finding: What was tried or looked at, in words.
        number: The mean over texts with its interval; None for a finding without a number.
        unit: The unit of `number` and `values`.
        n: Number of texts.
        word: The grade: free, small, costs, breaks or cannot tell (`trials.grade`); empty for a row without one.
        why: The reason for the grade.
        advice: What to do; only for grades in `ADVISED`, and for facts that need no trial.
        bytes: Size of the cache after the context of one text.
        of_16: `bytes` as a share of a 16-bit cache.
        values: The number for each text, for paired comparisons with another card.
        flags: Names from `FLAGS` that the row raises, in addition to its grade.
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
        data: dict[str, Any] = {"key": self.key, "finding": self.finding}
        if self.number is not None:
            ends = (self.number.value, self.number.low, self.number.high)
            data |= dict(zip(("value", "low", "high"), map(_finite, ends), strict=True))
            data |= {"unit": self.unit, "n": self.n}
        for name in ("word", "why", "advice", "bytes", "of_16"):
            if (value := getattr(self, name)) not in ("", None):
                data[name] = value
        if self.values:
            data["values"] = [_finite(value) for value in self.values]
        return data | ({"flags": list(self.flags)} if self.flags else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """The inverse of `to_json`."""
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
        """The number with its interval, and its unit unless `unit` is False."""
        if self.number is None:
            return ""
        if self.unit.startswith("%"):
            return f"{_percent(self.number)}{self.unit[1:]}"
        text = _nats(self.number, "+" if self.unit.startswith("nats lost") else "")
        return f"{text} {self.unit}" if unit else text


@dataclass(frozen=True)
class Answered:
    """The answer of a section on one set of texts.

    Args:
        answer: What was found, in sentences, without advice; the first one is short and says most.
        rows: The findings behind them.
        facts: Further results for JSON, lines for engines, and the atlas.
        missing: Why the section was not run; empty if it was.
        advised_by: Keys of the rows whose advice the section may give, the best first.
        otherwise: What to do if none of these rows gives advice.
    """

    answer: str = ""
    rows: tuple[Row, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    advised_by: tuple[str, ...] = ()
    otherwise: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON-able data."""
        data: dict[str, Any] = {"answer": self.answer, "rows": [row.to_json() for row in self.rows]}
        data |= {"facts": dict(self.facts)} if self.facts else {}
        data |= {"advised_by": list(self.advised_by)} if self.advised_by else {}
        data |= {"otherwise": self.otherwise} if self.otherwise else {}
        return data | ({"not_run": self.missing} if self.missing else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answered:
        """The inverse of `to_json`."""
        rows = tuple(Row.from_json(row) for row in data["rows"])
        advised_by, otherwise = tuple(data.get("advised_by", ())), data.get("otherwise", "")
        return cls(data["answer"], rows, data.get("facts", {}), data.get("not_run", ""), advised_by, otherwise)


def combined(first: Row, other: Row | None, names: Sequence[str]) -> Row:
    """One row for two sets of texts: the first set's number, the worse grade, and advice only if both sets give it.

    `names`: the names of the two sets. `other`: the row of the second set; None where it was not measured there.
    """
    if other is None:
        why = "; ".join(filter(None, (first.why, f"on {names[0]} alone")))
        return replace(first, why=why, advice="") if first.word or first.advice else first
    flags = tuple(dict.fromkeys((*first.flags, *other.flags)))
    row = replace(first, flags=flags, advice=first.advice if other.advice else "")
    if not first.word:
        return row
    if first.word == other.word:
        return replace(row, why="; ".join(filter(None, (first.why, "holds on both"))))
    worse = min((first, other), key=lambda row: ORDER.index(row.word))
    return replace(row, word=worse.word, why=f"{first.word} on {names[0]}, {other.word} on {names[1]}")


def paired_difference(new: Row, old: Row) -> Interval:
    """Mean over the same texts of `new` minus `old`. Raises `InputError` unless both have a number for each text."""
    if not new.values or len(new.values) != len(old.values):
        raise InputError(f"'{new.key}' has {len(new.values)} values here and {len(old.values)} there: not comparable")
    return mean_interval(np.asarray(new.values) - np.asarray(old.values))


def _nats(interval: Interval, sign: str) -> str:
    """With about two significant digits: 0.0391 (0.0312 to 0.0470). `sign`: "+" to show it for positive numbers too."""
    size = max((abs(v) for v in (interval.value, interval.low, interval.high) if math.isfinite(v)), default=0.0)
    digits = 4 if size < 0.1 else 3 if size < 1 else 2
    value = f"{interval.value:{sign}.{digits}f}"
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return value
    return f"{value} ({interval.low:{sign}.{digits}f} to {interval.high:{sign}.{digits}f})"


def _percent(interval: Interval) -> str:
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return f"{interval.value:.0f} %"
    return f"{interval.value:.0f} % ({interval.low:.0f} to {interval.high:.0f})"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
