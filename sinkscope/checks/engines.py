"""Command lines for engines: only those with a measured arm, and a source in a named version of the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from sinkscope.checks.card import Part
from sinkscope.checks.row import Row

CACHES = ("cache", "engines")  # sections whose arms are caches
VLLM_CACHE, SLIDING = "--kv-cache-dtype", "sliding_attention"


def entries() -> list[dict[str, Any]]:
    """The entries of `engines.json`.

    Each has `engine`, `source` (engine@commit and file) and `date`. Then it has `line`, `needs` and sometimes `beware`;
    or `refused`, the reason why there is no line; or `script` and `beware`, for what takes a file (`compressor`). In
    `line` and `beware`, {keep} is the number of first tokens to keep, {keep_after_bos} that number without the BOS that
    the tokenizer adds, and {skip} the layers that an arm leaves in full precision.
    """
    text = resources.files("sinkscope.checks").joinpath("engines.json").read_text(encoding="utf-8")
    return list(json.loads(text))


def lines(parts: Sequence[Part], *, gguf: bool) -> tuple[Mapping[str, Any], ...]:
    """The lines whose conditions hold. `gguf`: the model is a GGUF file.

    Conditions in an entry's `needs`: `section` and `key` name a row, which must have advice or no number: on two sets
    of texts, advice that holds on both. With `better` it must predict better than the default, with `gguf` the model
    must be a GGUF file. An entry without source or date is left out, and one whose numbers
    are unknown.

    Arms leave layers with a window as they are. vLLM is told to, and other engines, which would round or shift those
    layers too, get no line for their caches.
    """
    rows = {(part.name, row.key): row for part in parts for row in part.rows}
    kept_tokens, windows = _kept_tokens(parts), _windows(parts)
    chosen = []
    for entry in entries():
        if "line" not in entry or not entry.get("source") or not entry.get("date"):
            continue
        needs = entry["needs"]
        row = rows.get((needs["section"], needs["key"]))
        if row is None or (needs.get("gguf") and not gguf) or not _advisable(row, better=bool(needs.get("better"))):
            continue
        line: dict[str, Any] = {name: str(entry[name]) for name in ("engine", "line", "source", "date")}
        if windows and needs["section"] in CACHES:
            if windows != {SLIDING} or not line["line"].startswith(VLLM_CACHE):
                continue
            line["line"] = _without_windows(line["line"])
        line |= {"beware": str(entry["beware"])} if entry.get("beware") else {}
        for name, value in {**kept_tokens, **_skipped_layers(parts, row.key)}.items():
            line |= {key: text.replace(f"{{{name}}}", str(value)) for key, text in line.items()}
        if "{keep" in line["line"]:
            continue  # a number that is not known
        chosen.append(line | ({} if row.of_16 is None else {"of_16": row.of_16}))
    return tuple(chosen)


def _windows(parts: Sequence[Part]) -> set[str]:
    """The kinds of layers of the model that see a window alone."""
    return {kind for part in parts if part.name in CACHES for kind in part.first.facts.get("windows", ())}


def _without_windows(line: str) -> str:
    """vLLM's line with the layers of a window left in full precision: an attention type among the layers to skip."""
    option = " --kv-cache-dtype-skip-layers"
    if option in line:
        return f"{line} sliding_window"
    value, comma, rest = line.partition(",")
    return f"{value}{option} sliding_window{comma}{rest}"


def refusals() -> dict[str, str]:
    """The reason why an engine has no line, with its source, by the engine's name."""
    return {
        entry["engine"]: f"{entry['refused']} ({entry['source']}, {entry['date']})"
        for entry in entries()
        if "refused" in entry and entry.get("source") and entry.get("date")
    }


def _kept_tokens(parts: Sequence[Part]) -> dict[str, int]:
    """The values of {keep} and {keep_after_bos}, where they are known."""
    facts = {part.name: part.first.facts for part in parts}
    keep = facts.get("engines", {}).get("keep")
    if keep is None:
        return {}
    # Cards of earlier releases have it in the section "bos" alone.
    added = {**facts["engines"], **facts.get("bos", {})}.get("tokenizer_adds")
    return {"keep": keep} | ({} if added is None else {"keep_after_bos": max(0, keep - min(added, 1))})


def _skipped_layers(parts: Sequence[Part], key: str) -> dict[str, str]:
    """The value of {skip} for the arm of a row."""
    facts = {part.name: part.first.facts for part in parts}.get("engines", {})
    skipped = facts.get("skip_layers", {}).get(key)
    return {} if skipped is None else {"skip": " ".join(map(str, skipped["whole"]))}


def _advisable(row: Row, *, better: bool) -> bool:
    """Whether a row supports its line: it has advice, with `better` a better prediction too, or no number at all."""
    if row.number is None:
        return not row.word
    return bool(row.advice) and (not better or row.number.high < 0)
