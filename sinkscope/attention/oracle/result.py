"""What a comparison found, as a table."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Outcome = Literal["agrees", "differs", "raised", "not supported"]
COLUMNS = ("case", "dtype", "", "output", "lse", "gradients", "limit", "note")
COLORS: dict[Outcome, str] = {"agrees": "green", "differs": "red", "raised": "red", "not supported": "yellow"}


class Disagreement(AssertionError):
    """An attention function does not compute what was asked."""


@dataclass(frozen=True)
class ParityRow:
    """One case in one dtype. `errors`: largest differences of output, lse and gradients, relative to the largest number
    that was expected; `limit`: up to where those of the output are rounding; `note`: which known mistake gives the same
    numbers, what was raised, or what is missing."""

    case: str
    dtype: str
    outcome: Outcome
    errors: Mapping[str, float] = field(default_factory=dict)
    limit: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class Parity:
    """The comparison of a function; prints as a table, also in notebooks."""

    function: str
    rows: tuple[ParityRow, ...]

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differs. What is not supported says nothing: see `missing`."""
        compared = [row for row in self.rows if row.outcome != "not supported"]
        return bool(compared) and all(row.outcome == "agrees" for row in compared)

    @property
    def wrong(self) -> tuple[ParityRow, ...]:
        """The rows that differ or raised."""
        return tuple(row for row in self.rows if row.outcome in ("differs", "raised"))

    @property
    def missing(self) -> tuple[ParityRow, ...]:
        """The rows that were not compared, because the function does not support them."""
        return tuple(row for row in self.rows if row.outcome == "not supported")

    @property
    def summary(self) -> str:
        """How many of each, in a line."""
        counts = {outcome: sum(row.outcome == outcome for row in self.rows) for outcome in COLORS}
        return f"{self.function}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)

    def cells(self) -> list[tuple[str, ...]]:
        """The words of each row: case, dtype, outcome, the errors of output, lse and gradients, limit, note."""
        return [(row.case, row.dtype, row.outcome, *_numbers(row), row.note) for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """The rows, and whether they agree, JSON-able."""
        return {"function": self.function, "ok": self.ok, "rows": [asdict(row) for row in self.rows]}

    def check(self, *, complete: bool = False) -> Parity:
        """Itself, or `Disagreement` naming the first wrong row; with `complete` also where a case is not supported."""
        for row in (*self.wrong, *(self.missing if complete else ())):
            raise Disagreement(f"{self.function}, {row.case} in {row.dtype}: {row.outcome}; {row.note}")
        if not self.ok:
            raise Disagreement(f"{self.function}: no case was compared")
        return self

    def table(self) -> Table:
        """A rich table of all rows."""
        found = Table(*COLUMNS, title=self.summary)
        for row in self.rows:
            outcome = Text(row.outcome, COLORS[row.outcome])
            found.add_row(row.case, row.dtype, outcome, *_numbers(row), Text(row.note))
        return found

    def __str__(self) -> str:
        console = Console(width=160, color_system=None)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        lines = []
        for cells in self.cells():
            lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
        return f"<table><caption>{html.escape(self.summary)}</caption><tr>{head}</tr>{''.join(lines)}</table>"


def _numbers(row: ParityRow) -> tuple[str, str, str, str]:
    gradients = [error for name, error in row.errors.items() if name.startswith("d")]
    found = (row.errors.get("output"), row.errors.get("lse"), max(gradients) if gradients else None, row.limit)
    output, lse, gradient, limit = ("" if value is None or math.isnan(value) else f"{value:.1e}" for value in found)
    return output, lse, gradient, limit
