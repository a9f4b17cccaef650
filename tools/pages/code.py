"""Blocks that are made from the catalog of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sinkscope.attention.catalog import SECTIONS, Entry
from sinkscope.attention.functional import explain
from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError
from tools.pages import table

PATHS = {"sdpa": "SDPA", "streamed": "streamed", "chunked": "query chunks"}
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


def zoo() -> str:
    """A table for each section of the catalog."""
    head = "operation | formula | a row of weights | learned, and where it acts | options | sink rate reads | CPU | GPU"
    head += " | published effect | source"
    return "\n\n".join(
        f"## {section.title}\n\n{table(head, map(_row, section.entries.values()))}" for section in SECTIONS
    )


def _row(entry: Entry) -> tuple[str, ...]:
    options = ", ".join(f"`{name}={default}`" for name, default in entry.options.items()) or "–"
    kernels = [explain(entry.spec, device).kernel for device in ("cpu", "cuda")]
    paths = [PATHS.get(kernel, kernel) for kernel in kernels]
    cells = [entry.formula, entry.rows, entry.acts, options, entry.spec.metric_weights, *paths, entry.effect]
    return (f"`{entry.name}`", *map(_escaped, [*cells, entry.source]))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def refused() -> str:
    """Why pieces are refused together, for each way in which they are."""
    return "\n".join(f"- {refusal(pieces)}" for pieces in REFUSED)


def refusal(pieces: Mapping[str, Any]) -> str:
    """Why these pieces are refused together. Raises `AssertionError` where they are not."""
    try:
        AttentionSpec.from_dict(pieces)
    except InputError as error:
        return str(error)
    raise AssertionError(f"{pieces} is an operation")


BLOCKS: dict[str, dict[str, Callable[[], str]]] = {"docs/zoo.md": {"zoo": zoo, "refused": refused}}
