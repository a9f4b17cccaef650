"""`python -m tools.pages.zoo`: fill the tables and the list of refusals in `docs/zoo.md` from the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sinkscope.attention.catalog import SECTIONS, Entry
from sinkscope.attention.functional import explain
from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError
from tools.pages import DOCS, write

PATHS = {"sdpa": "SDPA", "streamed": "streamed", "chunked": "query chunks"}
COLUMNS = (
    *("operation", "formula", "a row of weights", "learned, and where it acts", "options"),
    *("sink rate reads", "CPU", "GPU", "published effect", "source"),
)
AFTER = "\n## What is refused, and why\n"
KERNEL: dict[str, Any] = {"similarity": {"kind": "kernel", "feature": "elu"}, "normalizer": {"kind": "linear"}}
DIFFERENCE: dict[str, Any] = {"difference": {}}
REFUSED: tuple[Mapping[str, Any], ...] = (
    {"normalizer": {"kind": "sigmoid"}, "slots": [{"kind": "zero"}]},
    {"normalizer": {"kind": "sigmoid", "normalized": True}, "slots": [{"kind": "suffix"}]},
    {"normalizer": {"kind": "linear", "divisor": "sum"}},
    {"similarity": {"kind": "kernel", "feature": "elu"}},
    KERNEL | {"temperature": {}},
    KERNEL | {"slots": [{"kind": "key", "value": "learned"}]},
    KERNEL | {"decay": {}},
    DIFFERENCE | {"slots": [{"kind": "key"}]},
    DIFFERENCE | {"query_key": {}},
)


def pages() -> dict[str, str]:
    """The page: what people wrote, with a table for each section of the catalog and why combinations are refused."""
    text = (DOCS / "zoo.md").read_text(encoding="utf-8")
    before, after = text.partition(f"\n## {SECTIONS[0].title}\n")[0], text.partition(AFTER)[2]
    tables = "".join(f"\n## {section.title}\n\n{_table(section.entries.values())}" for section in SECTIONS)
    refused = "".join(f"- {refusal(pieces)}\n" for pieces in REFUSED)
    return {"zoo.md": before + tables + AFTER + re.sub(r"(^- .*\n)+", lambda _: refused, after, count=1, flags=re.M)}


def refusal(pieces: Mapping[str, Any]) -> str:
    """Why these pieces are refused together. Raises `AssertionError` where they are not."""
    try:
        AttentionSpec.from_dict(pieces)
    except InputError as error:
        return str(error)
    raise AssertionError(f"{pieces} is an operation")


def _table(entries: Iterable[Entry]) -> str:
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, entries)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(entry: Entry) -> tuple[str, ...]:
    options = ", ".join(f"`{name}={default}`" for name, default in entry.options.items()) or "–"
    kernels = [explain(entry.spec, device).kernel for device in ("cpu", "cuda")]
    paths = [PATHS.get(kernel, kernel) for kernel in kernels]
    said = [entry.formula, entry.rows, entry.acts, options, entry.spec.metric_weights, *paths, entry.effect]
    return (f"`{entry.name}`", *map(_escaped, [*said, entry.source]))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    write(pages())
