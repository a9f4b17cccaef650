"""The page of a report card."""

from __future__ import annotations

import pandas as pd

from sinkscope.checks import Card, Part, held
from sinkscope.report.page import Page, Section
from sinkscope.report.provenance import joined
from sinkscope.trials import explained


def check_page(card: Card) -> Page:
    """The answers first, then a table for each section, and the meaning of the words."""
    record = card.record
    facts = {
        "versions": joined(record["versions"].items()),
        "texts": joined((text["name"], f"{text['n']} texts, sha256 {text['sha256'][:16]}") for text in record["texts"]),
        "model": joined((name, record[name]) for name in ("class", "dtype", "device", "parameters", "model_sha256")),
    }
    return Page(f"Report card of {record['model']}", "", (), card_sections(card), facts, answer=card.answers())


def card_sections(card: Card) -> list[Section]:
    """A table for each section, lines for engines, and the meaning of the words."""
    sections = [Section(part.title, _sentence(part), {}, _table(part), unfolded=True) for part in card.parts]
    if card.lines_for:
        frame = pd.DataFrame([dict(line) for line in card.lines_for]).drop(columns="of_16", errors="ignore").fillna("")
        sentence = "Settings whose arm was measured above, as read in the engine's source; none of them was run here."
        sections.append(Section("Lines for engines", sentence, {}, frame, unfolded=True))
    return [*sections, Section("What the words mean", explained(), {})]


def _sentence(part: Part) -> str:
    if part.first.missing:
        return f"Not run: {part.first.missing}."
    names = list(part.by_texts)
    if len(names) == 1:
        return f"On {names[0]}."
    return f"Numbers are for {names[0]} unless another is named; words are the worse ones of {' and '.join(names)}."


def _table(part: Part) -> pd.DataFrame | None:
    """The rows with column names for readers; columns without a value are left out."""
    if not part.rows:
        return None
    units = {row.unit for row in part.rows if row.number is not None}
    one = units.pop() if len(units) == 1 else ""
    number = f"{one} (95 %)" if one and not one.startswith("%") else "number (95 %)"
    rows = [
        {
            "": row.finding,
            number: row.shown(unit=not one),
            "n": row.n or None,
            "word": row.word,
            "KiB, of 16 bit": held(row),
            "note": "; ".join(filter(None, (row.advice, row.why))),
        }
        for row in part.rows
    ]
    frame = pd.DataFrame(rows)
    return frame[[name for name in frame if any(bool(value) for value in frame[name])]]
