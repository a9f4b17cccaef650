"""`python -m tools.pages.costs`: write tables of stored benchmarks into pages about caches, between their marks."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.sides import REAL, RESULTS
from tools.pages import between, write

REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODELS = {REAL_MODEL: "SmolLM2-135M-Instruct", "nano": "`nano`"}
CORPORA = {"python:prose": "docstrings", "python:code": "code"}
SINKS = ("0", "1", "2", "4")


def steps() -> str:
    """A decoded token with each policy against a `DynamicCache` that stores as many keys."""
    figures = json.loads((RESULTS / f"eviction_{REAL_MODEL}.json").read_text())["figures"]
    rows = {figure["what"].partition(": ")[2]: figure["ratio"] for figure in figures}
    lines = ["| policy | time × | its matrix products alone |", "|---|---|---|"]
    for what, ratio in sorted(rows.items(), key=lambda row: row[1]):
        if what.startswith("a token with "):
            policy = what.removeprefix("a token with ").partition(" /")[0]
            alone = rows.get(what.replace("a token with", "products alone of a token with").replace(" /", " + plain /"))
            lines.append(f"| {policy} | {ratio:.2f} | {'' if alone is None else f'{alone:.2f}'} |")
    return "\n".join(lines)


def sinks() -> str:
    """NLL with each number of sinks at the same number of keys, and its difference from four sinks."""
    lines = ["| model, text | keys | texts | full cache | 0 sinks | 1 | 2 | 4 |", "|---|---|---|---|---|---|---|---|"]
    models = json.loads((REAL / "streaming_sinks.json").read_text())["models"]
    for model, title in MODELS.items():
        for name, part in models[model].items():
            corpus, keys = name.removesuffix(" keys").split(", ")
            summary = part["summary"]
            cells = [f"{title}, {CORPORA[corpus]}", keys, str(summary["texts"]), _number(summary["nll full"][0])]
            lines.append(f"| {' | '.join([*cells, *(_cell(summary, number) for number in SINKS)])} |")
    return "\n".join(lines)


def _cell(summary: dict[str, Any], sinks: str) -> str:
    mean = _number(summary[f"nll {sinks}"][0])
    if sinks == "4":
        return mean
    value, low, high = summary[f"nll {sinks} − 4"]
    return f"{mean} ({_number(value, '+')}: {_number(low)} to {_number(high)})"


def _number(x: float, sign: str = "") -> str:
    return f"{x:{sign}.3f}".replace("-", "−")


def pages() -> dict[str, str]:
    """Both pages, their tables made anew."""
    return {
        "which_policy.md": between("which_policy.md", "steps", steps()),
        "stream_for_ever.md": between("stream_for_ever.md", "sinks", sinks()),
    }


if __name__ == "__main__":
    write(pages())
