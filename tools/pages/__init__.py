"""Marked blocks of pages: `<!-- name -->`, what is made, `<!-- end of name -->`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def filled(text: str, block: str, made: str) -> str:
    """`text` with `made` in its block. Raises `ValueError` without the two marks."""
    before, begin, rest = text.partition(f"<!-- {block} -->\n")
    _, end, after = rest.partition(f"<!-- end of {block} -->")
    if not (begin and end):
        raise ValueError(f"the page needs the lines <!-- {block} --> and <!-- end of {block} -->")
    return f"{before}{begin}\n{made}\n\n{end}{after}"


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; `head` is its first line, without the outer bars."""
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def foreign(value: object) -> str:
    """A value as Markdown shows it; names of models are other people's."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    text = f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())
    for mark, shown in (("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("`", "\\`"), ("<", "&lt;")):
        text = text.replace(mark, shown)
    return text
