"""`sinkscope zoo`: the catalogue of attention operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sinkscope.errors import unknown
from sinkscope.report.terminal import flat, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.attention.catalog import Entry


def zoo(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show one operation with its options.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """List the attention operations, or show one: formula, what its rows sum to, source, options."""
    from sinkscope.attention.catalog import ENTRIES

    if name is None:
        described = [_describe(key, entry) for key, entry in ENTRIES.items()]
        if as_json:
            show_json({"operations": described})
        else:
            _show_list(described)
        return
    if name not in ENTRIES:
        raise unknown("attention operation", name, ENTRIES)
    description = _describe(name, ENTRIES[name])
    if as_json:
        show_json(description)
    else:
        _show_one(description)


def _describe(name: str, entry: Entry) -> dict[str, Any]:
    return {
        "name": name,
        "formula": entry.formula,
        "rows": entry.rows,
        "metric_weights": entry.spec.metric_weights,
        "source": entry.source,
        "spec": entry.spec.to_dict(),
    }


def _show_list(described: list[dict[str, Any]]) -> None:
    fields = ("name", "formula", "rows", "source")
    rows = [[entry[field] for field in fields] for entry in described]
    show(table(("operation", "formula", "a row of weights", "source"), rows, numbers_from=len(fields)))


def _show_one(description: dict[str, Any]) -> None:
    facts = [
        ("formula", description["formula"]),
        ("a row of weights", description["rows"]),
        ("the sink metric reads", f"{description['metric_weights']} weights"),
        ("source", description["source"]),
    ]
    show(Text(description["name"], "bold"))
    show(table(("", ""), facts, numbers_from=2))
    show(Text("\noptions"))
    show(table(("field", "value"), flat(description["spec"]), numbers_from=2))
