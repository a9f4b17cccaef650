"""`python -m tools.pages.zoo`: write `docs/zoo.md`, the page of the whole zoo, from the catalog itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sinkscope.attention.catalog import SECTIONS, Entry
from sinkscope.attention.functional import explain
from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError
from tools.pages import write
from tools.pages.zoo_text import AFTER, BEFORE, REFUSED

PATHS = {"sdpa": "SDPA", "streamed": "streamed", "chunked": "query chunks"}
COLUMNS = (
    *("operation", "formula", "a row of weights", "learned, and where it acts", "options"),
    *("sink rate reads", "CPU", "GPU", "published effect", "source"),
)


def pages() -> dict[str, str]:
    """The zoo as Markdown: how pieces combine, a table for each section, what is refused, what a model can vary."""
    tables = "".join(f"\n## {section.title}\n\n{_table(section.entries.values())}" for section in SECTIONS)
    refused = "\n".join(f"- {reason}" for reason in map(refusal, REFUSED))
    return {"zoo.md": BEFORE + tables + AFTER.format(refused=refused)}


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
