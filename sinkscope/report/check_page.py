"""The page of a report card."""

from __future__ import annotations

import pandas as pd

from sinkscope.checks import Card, Part, held
from sinkscope.report.page import Page, Section
from sinkscope.report.provenance import joined
from sinkscope.trials import explained


def check_page(card: Card) -> Page:
    """The answers first, then a table for each section, and what the words mean."""
    record = card.record
    sections = [Section(part.title, _said(part), {}, _table(part), unfolded=True) for part in card.parts]
    if card.lines_for:
        frame = pd.DataFrame([dict(line) for line in card.lines_for])
        said = "Lines whose arm was measured above, as read in the engine's source; none of them was run here."
        sections.append(Section("Lines for engines", said, {}, frame, unfolded=True))
    sections.append(Section("What the words mean", explained(), {}))
    facts = {
        "versions": joined(record["versions"].items()),
        "texts": joined((text["name"], f"{text['n']} texts, sha256 {text['sha256'][:16]}") for text in record["texts"]),
        "model": joined((name, record[name]) for name in ("class", "dtype", "device", "parameters", "model_sha256")),
    }
    return Page(f"Report card of {record['model']}", "", (), sections, facts, answer=card.answers())


def _said(part: Part) -> str:
    if part.first.missing:
        return f"Not run: {part.first.missing}."
    names = list(part.found)
    return f"On {names[0]}." if len(names) == 1 else f"Numbers are of {names[0]}; words hold on {' and '.join(names)}."


def _table(part: Part) -> pd.DataFrame | None:
    if not part.rows:
        return None
    rows = [
        {
            "finding": row.finding,
            "number (95 %)": row.shown(),
            "texts": row.n or None,
            "word": row.word,
            "KiB a text, of 16 bit": held(row),
            "what to do, or why": "; ".join(filter(None, (row.advice, row.why))),
        }
        for row in part.rows
    ]
    return pd.DataFrame(rows)
