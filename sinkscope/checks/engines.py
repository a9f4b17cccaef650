"""Lines for engines: only those whose arm was measured, from entries that were read in a source of a named version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from sinkscope.checks.card import Part
from sinkscope.checks.row import ADVISED, Row


def entries() -> list[dict[str, Any]]:
    """What `engines.json` holds.

    Each has `engine`, `source` (engine@commit and file) and `date`; then `line`, `needs` and perhaps `beware`, or why
    there is no line: `refused`. In `line` and `beware`, {keep} is how many first tokens to keep, and {keep_after_bos}
    as many without a BOS that the file adds, {skip} the layers that an arm leaves whole.
    """
    text = resources.files("sinkscope.checks").joinpath("engines.json").read_text(encoding="utf-8")
    return list(json.loads(text))


def lines(parts: Sequence[Part], *, gguf: bool) -> tuple[Mapping[str, str], ...]:
    """The lines of which every condition holds. `gguf`: whether the model was a GGUF file.

    An entry's `needs`: `section` and `key` of the row whose arm it is, which must be free or small, or be there where
    it has no number; `better`: it must predict better than the default; `advised`: its row must have advice; `gguf`:
    for such files alone. An entry without source or date is left out.
    """
    rows = {(part.name, row.key): row for part in parts for row in part.rows}
    values = _values(parts)
    chosen = []
    for entry in entries():
        if "refused" in entry or not entry.get("source") or not entry.get("date"):
            continue
        needs = entry["needs"]
        row = rows.get((needs["section"], needs["key"]))
        if row is None or (needs.get("gguf") and not gguf) or not _holds(row, better=bool(needs.get("better"))):
            continue
        if needs.get("advised") and not row.advice:
            continue
        line = {name: str(entry[name]) for name in ("engine", "line", "source", "date")}
        line |= {"beware": str(entry["beware"])} if entry.get("beware") else {}
        for name, value in {**values, **_skipped(parts, row.key)}.items():
            line |= {key: text.replace(f"{{{name}}}", str(value)) for key, text in line.items()}
        chosen.append(line)
    return tuple(chosen)


def refusals() -> dict[str, str]:
    """Why there is no line for an engine, with its source, by the engine's name."""
    return {
        entry["engine"]: f"{entry['refused']} ({entry['source']}, {entry['date']})"
        for entry in entries()
        if "refused" in entry and entry.get("source") and entry.get("date")
    }


def _values(parts: Sequence[Part]) -> dict[str, int]:
    """What stands for the names in braces."""
    facts = {part.name: part.first.facts for part in parts}
    keep = facts.get("engines", {}).get("keep")
    if keep is None:
        return {}
    added = min(int(facts.get("bos", {}).get("tokenizer_adds", 0)), 1)
    return {"keep": keep, "keep_after_bos": max(0, keep - added)}


def _skipped(parts: Sequence[Part], key: str) -> dict[str, str]:
    """The layers that the arm of a row leaves whole."""
    facts = {part.name: part.first.facts for part in parts}.get("engines", {})
    found = facts.get("skip_layers", {}).get(key)
    return {} if found is None else {"skip": " ".join(map(str, found["whole"]))}


def _holds(row: Row, *, better: bool) -> bool:
    """Whether a row's arm is advice: it predicts better than the default, costs little, or is no matter of degree."""
    if row.number is None:
        return not row.word
    return row.number.high < 0 if better else row.word in ADVISED
