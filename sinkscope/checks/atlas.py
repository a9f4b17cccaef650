"""The atlas: report cards of models without texts, one JSON file each, validated, and the table that they make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.checks.card import SCHEMA, Card
from sinkscope.checks.row import ADVISED, ORDER
from sinkscope.errors import InputError
from sinkscope.files import write_json

RECORD = ("model", "weights", "parameters", "dtype", "seconds", "texts", "versions")
"""Fields that every file has beside its schema, revision and sections."""
LIMITS = {"% of heads": (0.0, 100.0), "% of attention": (0.0, 100.0), "KL a token": (0.0, 50.0)}
"""Least and largest value by unit; of other units −50 to 50."""
OF_TEXTS = ("name", "says", "n", "sha256")
DROPPED = ("values", "finding")
LONG = ("by_head",)  # facts that are left out


def submission(card: Card, revision: str | None = None) -> dict[str, Any]:
    """A card as the atlas takes it: every number with its interval and n, no text and no number of single texts."""
    data = card.to_json()
    found = {name: data[name] for name in ("schema", *RECORD, "controls", "seed", "model_sha256", "flags")}
    found["texts"] = [{name: each[name] for name in OF_TEXTS} for each in data["texts"]]
    sections = {}
    for name, part in data["sections"].items():
        on = {}
        for texts, one in part["on"].items():
            rows = [{key: value for key, value in row.items() if key not in DROPPED} for row in one["rows"]]
            facts = {name: value for name, value in one.get("facts", {}).items() if name not in LONG}
            on[texts] = {"rows": rows, "facts": facts}
        sections[name] = {"seconds": part["seconds"], "on": on}
    return {**found, "revision": revision, "sections": sections}


def write_submission(card: Card, folder: Path, revision: str | None = None) -> Path:
    """Write a submission, under the model's name. Raises `InputError` for one that does not validate."""
    data = submission(card, revision)
    validate(data, card.record["model"])
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', str(card.record['model'])).strip('-.')}.json"
    write_json(path, data)
    return path


def validate(data: Any, name: str) -> None:
    """Raises `InputError`, in one line, for what is no submission: schema, fields, hashes, numbers out of bounds."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(
            f"{name}: expected a card of schema {SCHEMA}: write it with sinkscope check MODEL --submit DIR"
        )
    if missing := [field for field in (*RECORD, "revision", "sections") if field not in data]:
        raise InputError(f"{name}: it lacks {', '.join(missing)}")
    for texts in data["texts"]:
        if not re.fullmatch(r"[0-9a-f]{64}", str(texts.get("sha256"))) or not texts.get("n", 0) >= 4:
            raise InputError(f"{name}: texts '{texts.get('name')}' need a sha256 and at least 4 texts")
    names = {texts["name"] for texts in data["texts"]}
    for section, part in data["sections"].items():
        for texts, found in part["on"].items():
            if texts not in names:
                raise InputError(f"{name}, {section}: texts '{texts}' are none of {', '.join(sorted(names))}")
            for row in found["rows"]:
                _validate_row(row, f"{name}, {section}")


def _validate_row(row: Mapping[str, Any], where: str) -> None:
    key = row.get("key")
    if more := set(row) & set(DROPPED):
        raise InputError(f"{where}, {key}: it holds {', '.join(sorted(more))}, which is left out of the atlas")
    if (word := row.get("word", "")) and word not in ORDER:
        raise InputError(f"{where}, {key}: '{word}' is no word of trials")
    if "value" not in row:
        return
    low, value, high = (row.get(name) for name in ("low", "value", "high"))
    least, most = LIMITS.get(str(row.get("unit")), (-50.0, 50.0))
    if value is None or not least <= value <= most:
        raise InputError(f"{where}, {key}: {value} {row.get('unit')} is out of bounds ({least:g} to {most:g})")
    if low is not None and high is not None and not low <= value <= high:
        raise InputError(f"{where}, {key}: {value} is not within its interval ({low} to {high})")
    if not row.get("n", 0) >= 4:
        raise InputError(f"{where}, {key}: n = {row.get('n')}: at least 4 texts")


def read_entries(folder: Path) -> list[dict[str, Any]]:
    """The submissions of a folder, by name. Raises `InputError` for one that does not validate."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
        validate(data, path.name)
        found.append(data)
    return found


def table(submissions: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per model: size, BOS, heads with a sink, block of the jump, hiding the sink, bits of the cache."""
    return pd.DataFrame([_row(data) for data in submissions])


def _row(data: Mapping[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for section, part in data["sections"].items():
        first, *others = part["on"].values()
        facts[section] = first.get("facts", {})
        rows |= {row["key"]: row for row in first["rows"]}
        for row in (row for other in others for row in other["rows"] if row.get("word") and row["key"] in rows):
            words = row["word"], rows[row["key"]].get("word") or row["word"]
            rows[row["key"]] = {**rows[row["key"]], "word": min(words, key=ORDER.index)}  # the worse of the two
    bits = [bits for bits in (2, 4, 8) if rows.get(f"kv{bits}", {}).get("word") in ADVISED]
    protected = [bits for bits in (2, 4, 8) if rows.get(f"kv{bits}-protected", {}).get("word") in ADVISED]
    bos = {0: "none", 1: "one", 2: "two"}.get(facts.get("bos", {}).get("tokenizer_adds"), "")
    return {
        "model": data["model"],
        "parameters": f"{data['parameters'] / 1e6:,.1f} M",
        "weights": data["weights"],
        "BOS that the tokenizer adds": bos,
        "heads with a sink, %": _number(rows.get("rate"), 0),
        "block of the jump": facts.get("sink", {}).get("block"),
        "hiding it, nats": _number(rows.get("hide-sink"), 2),
        "bits the cache bears": min(bits, default=16) if any(key.startswith("kv") for key in rows) else None,
        "with the sink protected": min(protected, default=16) if "kv2-protected" in rows else None,
        "texts": "; ".join(f"{each['n']} × {each['name']}" for each in data["texts"]),
    }


def _number(row: Mapping[str, Any] | None, digits: int) -> str:
    if row is None or row.get("value") is None:
        return ""
    value = f"{row['value']:.{digits}f}"
    if row.get("low") is None or row.get("high") is None:
        return value
    return f"{value} ({row['low']:.{digits}f} to {row['high']:.{digits}f})"
