"""Tables that lose no column: one that is wider than its place shows each row as a card of names and values.

The width that a table needs is estimated when it is written, from its longest words and numbers; the style sheet
(`templates/tables.css`) compares it with the place that there is. So this needs no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pandas as pd

WIDTHS: Final = (14, 18, 22, 26, 30, 36, 42, 48, 56, 64, 74, 84)
"""Least widths of a place, in rem, that tables ask for; one that needs more is always shown as cards."""

CHARACTER: Final = 0.54  # rem, of a table's font, on average
PADDING: Final = 1.3  # rem, of a cell
PHRASE: Final = 18  # characters that a line of text should have room for
LONG: Final = 40  # characters; a card shows longer texts below their name
MISSING: Final = "–"


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and how `templates/table.html` shows it.

    Attributes:
        number: aligned right.
        look: "" plain, "changed" bold, "odd" warning, "run" with an `id`, "button" that shows the run of number `id`;
            any other word is the class of a pill.
        link: the id of the element that the text leads to.
        note: smaller text below.
    """

    text: str
    number: bool = False
    look: str = ""
    id: str = ""
    link: str = ""
    note: str = ""

    @property
    def words(self) -> str:
        """All that a reader sees of it."""
        return f"{self.text} {self.note}".strip()

    @property
    def classes(self) -> str:
        """Classes of the element."""
        return " ".join([*(["number"] if self.number else []), *(["long"] if len(self.words) > LONG else [])])


@dataclass(frozen=True)
class PageTable:
    """A table of a page. `kind`: a class of its frame; the first cell of a row heads it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    label: str
    kind: str = ""

    @cached_property
    def numbers(self) -> list[bool]:
        """For each column, whether all its cells are numbers."""
        return [bool(self.rows) and all(row[index].number for row in self.rows) for index in range(len(self.columns))]

    @property
    def width(self) -> str:
        """The class of the least width that holds it."""
        return fitting(self.columns, [[cell.words for cell in row] for row in self.rows], self.numbers)


def frame_table(frame: pd.DataFrame, label: str) -> PageTable:
    """A data frame as a table: numeric columns are aligned right, NaN is a dash."""
    numbers = [bool(pd.api.types.is_numeric_dtype(frame[column])) for column in frame.columns]
    rows = [
        [Cell(_text(value), number) for value, number in zip(row, numbers, strict=True)]
        for row in frame.itertuples(index=False, name=None)
    ]
    return PageTable([str(column) for column in frame.columns], rows, label)


def width_limits() -> list[tuple[str, str]]:
    """For each class of width: the selector of its tables, and the place below which they become cards."""
    return [*((f".w{width}", f"{width - 0.01}rem") for width in WIDTHS), (".wide", "999rem")]


def fitting(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[bool]) -> str:
    """The class of a table with these plain texts: the least of `WIDTHS` that holds it, or `wide`.

    A number is never broken; a text is broken between words.
    """
    needs = [_longest_word(name) for name in columns]
    for row in rows:
        for index, text in enumerate(row):
            needs[index] = max(needs[index], len(text) if numbers[index] else _longest_word(text))
    width = sum(CHARACTER * each + PADDING for each in needs)
    return next((f"w{limit}" for limit in WIDTHS if limit >= width), "wide")


def _longest_word(text: str) -> int:
    """In characters; a phrase counts as a line of `PHRASE` at least."""
    longest = max((len(word) for word in text.replace("-", "- ").split()), default=0)
    return max(longest, min(len(text), PHRASE) if " " in text else 0)


def _text(value: Any) -> str:
    if value is None or value is pd.NA:
        return MISSING
    if isinstance(value, float):
        return MISSING if value != value else f"{value:.4g}"
    return str(value)
