"""Stored results, from which pages are filled."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from tools.pages import ROOT

RESULTS = ROOT / "results"
SHIPPED = ROOT / "sinkscope" / "model" / "shipped"
WORDS = (
    *("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)


def read(place: str) -> Any:
    """A file of `results`, such as "real/fold_smollm2"."""
    return json.loads((RESULTS / f"{place}.json").read_text())


def figures(benchmark: str) -> dict[str, dict[str, Any]]:
    """The figures of a stored benchmark by what they compare; of several alike, the last."""
    return {row["what"]: row for row in read(f"benchmarks/{benchmark}")["figures"]}


def shipped(model: str) -> dict[str, Any]:
    """The training record of a shipped model, which lies beside its weights."""
    return dict(json.loads((SHIPPED / model / "record.json").read_text()))


def curve(model: str) -> dict[int, dict[str, Any]]:
    """The logged rows of a shipped model's training, by step."""
    rows = map(json.loads, (SHIPPED / model / "log.jsonl").read_text().splitlines())
    return {row["step"]: row for row in rows}


def windows(measured: dict[str, Any]) -> tuple[int, int]:
    """How many windows a stored measurement read, and of how many tokens."""
    samples, tokens, *_ = re.findall(r"\d+", measured["input"]["description"])
    return int(samples), int(tokens)


def arms(place: str) -> dict[str, dict[str, Any]]:
    """The rows of a stored trial by their names: arms, controls and the unchanged model."""
    return {row["arm"]: row for row in read(place)["result"]["arms"]}


def ends(row: dict[str, Any], name: str, digits: int, times: float = 1) -> tuple[str, str]:
    """The two ends of an interval, as `row` has them under `name_low` and `name_high`."""
    low, high = (f"{times * row[f'{name}_{end}']:.{digits}f}".replace("-", "−") for end in ("low", "high"))
    return low, high


def quoted(place: str, words: str) -> tuple[str, str, str]:
    """The value and the two ends that a stored trial's verdict gives after these words, as it writes them."""
    each = r"\+?(-?[\d.]+)"
    verdict = read(place)["result"]["verdict"]
    value, low, high = groups(rf"{re.escape(words)} \(?{each} \({each} to {each}\)", verdict)
    return value, low, high


def groups(pattern: str, text: str) -> tuple[str, ...]:
    """What the groups of a pattern find in a stored text, such as a command. Raises `ValueError` for nothing."""
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"no '{pattern}' in: {text}")
    return found.groups()


def number(value: float, digits: int) -> str:
    """A number as pages write it."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # no "−0.00"


def bare(value: float, digits: int) -> str:
    """The same without the zero before its point."""
    return number(value, digits).replace("0.", ".", 1) if abs(value) < 1 else number(value, digits)


def span(values: Iterable[float], digits: int, times: float = 1) -> str:
    """The least and the largest of some numbers, such as "8 to 12", or "8" where both read the same."""
    every = [times * value for value in values]
    return " to ".join(dict.fromkeys(number(end, digits) for end in (min(every), max(every))))


def in_words(count: float) -> str:
    """A count up to twenty, written out."""
    return WORDS[round(count)]


def one(texts: Iterable[str]) -> str:
    """The one text that all are. Raises `ValueError` where they differ."""
    found = set(texts)
    if len(found) != 1:
        raise ValueError(f"one number is said of {', '.join(sorted(found))}")
    return found.pop()


def listed(words: Iterable[str]) -> str:
    """Words in a row: "a, b and c"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each stretch of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for each in sorted(numbers):
        if found and each == found[-1][1] + 1:
            found[-1] = found[-1][0], each
        else:
            found.append((each, each))
    return found
