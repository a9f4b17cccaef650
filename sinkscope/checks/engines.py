"""Lines for engines: only those whose arm was measured, from entries that were read in a source of a named version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from sinkscope.checks.card import Part
from sinkscope.checks.row import ADVISED, Row


def entries() -> list[dict[str, Any]]:
    """What `engines.json` holds: `engine`, `line`, `beware`, `needs`, `source` (engine@commit and file), `date`."""
    text = resources.files("sinkscope.checks").joinpath("engines.json").read_text(encoding="utf-8")
    return list(json.loads(text))


def lines(parts: Sequence[Part], *, gguf: bool) -> tuple[Mapping[str, str], ...]:
    """The lines of which every condition holds. `gguf`: whether the model was a GGUF file.

    An entry's `needs`: `section` and `key` of the row whose arm it is, which must be free or small, or be there where
    it has no number; `better`: it must predict better than the default; `gguf`: for such files alone. An entry without
    source or date is left out.
    """
    rows = {(part.name, row.key): row for part in parts for row in part.rows}
    found = []
    for entry in entries():
        needs = entry["needs"]
        row = rows.get((needs["section"], needs["key"]))
        if row is None or not entry.get("source") or not entry.get("date") or (needs.get("gguf") and not gguf):
            continue
        if _holds(row, better=bool(needs.get("better"))):
            said = {name: str(entry[name]) for name in ("engine", "line", "source", "date")}
            found.append(said | ({"beware": str(entry["beware"])} if entry.get("beware") else {}))
    return tuple(found)


def _holds(row: Row, *, better: bool) -> bool:
    """Whether a row's arm is advice: it predicts better than the default, costs little, or is no matter of degree."""
    if row.number is None:
        return not row.word
    return row.number.high < 0 if better else row.word in ADVISED
