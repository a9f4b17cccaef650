"""Markdown of generated pages: tables, and text that is shown as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are escaped already."""
    return "\n".join([row(columns), row(["---"] * len(columns)), *map(row, rows)])


def row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    for mark, shown in (("\\", "\\\\"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("`", "\\`"), ("<", "&lt;")):
        text = text.replace(mark, shown)
    return " ".join(text.split())
