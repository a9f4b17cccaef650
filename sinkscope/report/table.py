"""Tables that lose no column: where one is wider than its place, each row becomes a card of names and values.

What a table needs is estimated when it is written, from its longest words and numbers, and the page's style sheet
compares it with the place that there is; so this needs no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

WIDTHS: Final = (14, 18, 22, 26, 30, 36, 42, 48, 56, 64, 74, 84)
"""Least widths of a place, in rem, that tables ask for; one that needs more is always shown as cards."""

CHARACTER: Final = 0.54  # rem, of a table's font, on average
PADDING: Final = 1.3  # rem, beside a cell
PHRASE: Final = 18  # characters that a line of text should have room for
LONG: Final = 40  # characters; longer texts stand below their name

_CARDS = """
@container (max-width: {below}) {{
  {w}, {w} tbody, {w} tr, {w} th, {w} td {{ display: block; }}
  {w} thead {{ position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }}
  {w} tr {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(14rem, 100%), 1fr)); gap: 0 1.5rem;
    padding: .55rem 0; border-bottom: 1px solid var(--line); }}
  {w} tbody th, {w} td {{ border: 0; padding: .1rem 0; min-width: 0; white-space: normal; overflow-wrap: anywhere; }}
  {w} tbody th {{ grid-column: 1 / -1; font-weight: 650; text-align: left; }}
  {w} td {{ display: flex; justify-content: space-between; gap: .9rem; text-align: right; }}
  {w} td::before {{ content: attr(data-name); color: var(--muted); text-align: left; overflow-wrap: normal; }}
  {w} td.long {{ grid-column: 1 / -1; display: block; text-align: left; }}
  {w} td.long::before {{ display: block; }}
}}"""


def style() -> str:
    """The style sheet of all widths."""
    limits = [(f".w{width}", f"{width - 0.01}rem") for width in WIDTHS]
    return "".join(_CARDS.format(w=name, below=limit) for name, limit in (*limits, (".wide", "999rem")))


def fitting(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[bool]) -> str:
    """The class of a table with these plain texts: the least of `WIDTHS` that holds it, or `wide`.

    A number is never broken, and a text is broken between words.
    """
    needs = [_words(name) for name in columns]
    for row in rows:
        for index, text in enumerate(row):
            needs[index] = max(needs[index], len(text) if numbers[index] else _words(text))
    width = sum(CHARACTER * each + PADDING for each in needs)
    return next((f"w{limit}" for limit in WIDTHS if limit >= width), "wide")


def cell(html: str, text: str, name: str, number: bool) -> str:
    """A cell below the head `name`; `html` is its content, safe already, and `text` the same in plain words."""
    kinds = [*(["number"] if number else []), *(["long"] if len(text) > LONG else [])]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<td data-name="{escape(name)}"{kind}>{html}</td>'


def _words(text: str) -> int:
    longest = max((len(word) for word in text.replace("-", "- ").split()), default=0)
    return max(longest, min(len(text), PHRASE) if " " in text else 0)
