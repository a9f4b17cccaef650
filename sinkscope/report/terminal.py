"""Results on a terminal: tables and sentences on stdout, remarks and progress on stderr, or JSON alone on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sinkscope.files import finite
from sinkscope.live import plain, printable, stderr

__all__ = [
    "LONGEST_WORD",
    "PADDING",
    "SHORT_CELL",
    "SHORT_WORD",
    "TerminalTable",
    "fail",
    "flat",
    "note",
    "only_json",
    "plain",
    "show",
    "show_json",
    "table",
    "width",
]

LONGEST_WORD = 30  # characters; longer ones, such as paths, are broken on a narrow terminal
SHORT_WORD = 12  # the same in a column of phrases, which can also be broken at spaces
SHORT_CELL = 8  # characters; columns without longer cells get room first
PADDING = 2  # spaces after a column
UNBROKEN = 10_000  # columns, wider than any table


_stdout: ContextVar[TextIO | None] = ContextVar("stdout", default=None)  # while libraries print elsewhere


def width() -> int:
    """Characters of a line, at least 1. In a pipe or a file no line is broken, unless COLUMNS says how wide it is."""
    console = Console()
    return max(1, console.width) if console.is_terminal or "COLUMNS" in os.environ else UNBROKEN


def show(*parts: RenderableType) -> None:
    """Print a result, as wide as `width`."""
    console = Console(highlight=False, width=width())
    console.print(*parts, soft_wrap=all(isinstance(part, Text | str) for part in parts))


def note(message: str) -> None:
    """Print a remark for people, on stderr."""
    stderr().print(plain(message), style="dim", soft_wrap=True)


def fail(message: str) -> None:
    """Print an error in the input as one line on stderr."""
    line = Text("error: ", style="bold red").append(plain(" ".join(message.split())))
    stderr().print(line, soft_wrap=True)


def show_json(value: Any) -> None:
    """Print one JSON value, also inside `only_json`. NaN and infinities, which JSON does not have, become null."""
    print(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False), file=_stdout.get())


@contextmanager
def only_json(active: bool) -> Iterator[None]:
    """While active, the output of libraries goes to stderr, so that machines can read stdout."""
    if not active:
        yield
        return
    before = _stdout.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _stdout.reset(before)


def flat(value: Any, prefix: str = "") -> list[tuple[str, object]]:
    """Nested data as dotted names and values: `{"a": {"b": 1}}` as `[("a.b", 1)]`, lists by their index."""
    if isinstance(value, Mapping) and value:
        return [pair for key, item in value.items() for pair in flat(item, f"{prefix}.{key}" if prefix else str(key))]
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return [pair for index, item in enumerate(value) for pair in flat(item, f"{prefix}[{index}]")]
    return [(prefix, value)]


@dataclass(frozen=True)
class TerminalTable:
    """A table that shows every column: if it is wider than the terminal, it continues below.

    Lines are broken between words. Words are broken only if they are longer than `LONGEST_WORD`, or than `SHORT_WORD`
    in a column of phrases. Columns that do not fit next to the first `keys` columns follow in another table, with
    these repeated.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers_from: int
    keys: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, group in enumerate(self._groups(options.max_width)):
            if number:
                yield Text("")
            widths = self._widths(group, options.max_width)
            if sum(PADDING + width for width in widths.values()) > options.max_width or not self._fits(widths):
                yield self._table(widths, self.rows)
                continue
            if any(self.names):
                yield self._table(widths, ())
            yield Segment("".join(self._line(row, widths) for row in self.rows))

    def _fits(self, widths: Mapping[int, int]) -> bool:
        """Whether every row is one line. Long tables without broken lines are written in a tenth of the time."""
        cells = [(row[index], width) for row in self.rows for index, width in widths.items() if index < len(row)]
        return all(cell == cell.strip() and "\n" not in cell and cell_len(cell) <= width for cell, width in cells)

    def _line(self, row: Sequence[str], widths: Mapping[int, int]) -> str:
        parts = []
        for index, width in widths.items():
            cell = row[index] if index < len(row) else ""
            blank = " " * (width - cell_len(cell))
            parts.append(blank + cell if index >= self.numbers_from else cell + blank)
        return "".join(part + " " * PADDING for part in parts) + "\n"

    def _groups(self, room: int) -> list[list[int]]:
        """The columns of each table."""
        keys = list(range(min(self.keys, len(self.names))))
        groups = [list(keys)]
        for index in range(len(keys), len(self.names)):
            wanted = [*groups[-1], index]
            if len(groups[-1]) > len(keys) and sum(PADDING + self._measures[each][0] for each in wanted) > room:
                groups.append(list(keys))
            groups[-1].append(index)
        return groups

    def _widths(self, group: Sequence[int], room: int) -> dict[int, int]:
        """The width of every column: the least first, then room for short cells, and the rest to the longest cells."""
        widths = {index: self._measures[index][0] for index in group}
        whole = {index: self._measures[index][1] for index in group}
        free = room - sum(PADDING + width for width in widths.values())
        while free < 0 and max(widths.values()) > 1:
            widths[max(widths, key=widths.__getitem__)] -= 1
            free += 1
        for index in (index for index in group if whole[index] <= SHORT_CELL):
            more = max(0, min(free, whole[index] - widths[index]))
            widths[index] += more
            free -= more
        while free > 0 and (broken := [index for index in group if widths[index] < whole[index]]):
            widths[max(broken, key=lambda index: whole[index] / widths[index])] += 1
            free -= 1
        return widths

    @cached_property
    def _measures(self) -> list[tuple[int, int]]:
        """For every column: the least width, and the width that breaks nothing."""
        measures = []
        for index, name in enumerate(self.names):
            cells = [printable(name), *(row[index] for row in self.rows if index < len(row))]
            longest = max((len(word) for cell in cells for word in cell.split()), default=1)
            unbroken = SHORT_WORD if any(" " in cell for cell in cells[1:]) else LONGEST_WORD
            measures.append((min(longest, unbroken), max(map(cell_len, cells))))
        return measures

    def _table(self, widths: Mapping[int, int], rows: Sequence[Sequence[str]]) -> Table:
        result = Table(header_style="bold", box=None, padding=(0, PADDING, 0, 0), show_header=any(self.names))
        for index, width in widths.items():
            justify: JustifyMethod = "right" if index >= self.numbers_from else "left"
            result.add_column(plain(self.names[index]), justify=justify, overflow="fold", width=width)
        for row in rows:
            result.add_row(*(Text(row[index]) for index in widths if index < len(row)))
        return result


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], numbers_from: int = 1, keys: int = 1
) -> TerminalTable:
    """A table with escaped cells; columns from `numbers_from` on are aligned right. Without names it has no head.

    If the terminal is too narrow for all columns, the first `keys` columns are repeated with the later ones.
    """
    return TerminalTable(columns, [[printable(cell) for cell in row] for row in rows], numbers_from, keys)
