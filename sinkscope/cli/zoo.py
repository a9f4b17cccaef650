"""`sinkscope zoo`: the catalog of attention operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sinkscope.cli import options
from sinkscope.errors import unknown
from sinkscope.report.terminal import flat, note, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.attention import Entry

FACTS = {
    "formula": "formula",
    "rows": "a row of weights",
    "acts": "what is learned, and where",
    "metric_weights": "the sink rate reads",
    "effect": "published effect",
    "source": "source",
}


def zoo(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show one operation with its options.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the attention operations, or show one: formula, where it acts, options, published effect, path, source."""
    from sinkscope.attention import ALIASES, ENTRIES, sections

    name = ALIASES.get(name, name) if name is not None else None
    if name is not None and name not in ENTRIES:
        raise unknown("attention operation", name, ENTRIES)
    if name is not None:
        operation = described(ENTRIES[name])
        show_json(operation) if as_json else _show_one(operation)
        return
    operations = {section.title: [described(entry) for entry in section.entries.values()] for section in sections()}
    if as_json:
        listed = [{"section": title, **entry} for title, entries in operations.items() for entry in entries]
        show_json({"operations": listed})
    else:
        _show_list(operations)


def described(entry: Entry) -> dict[str, Any]:
    """Everything that the catalog knows about an operation, JSON-able."""
    from sinkscope.attention import explain

    return {
        "name": entry.name,
        "formula": entry.formula,
        "rows": entry.rows,
        "acts": entry.acts,
        "options": dict(entry.options),
        "metric_weights": entry.spec.metric_weights,
        "path": {device: str(explain(entry.spec, device)) for device in ("cpu", "cuda")},
        "effect": entry.effect,
        "source": entry.source,
        "spec": entry.spec.to_dict(),
    }


def _show_list(operations: Mapping[str, list[dict[str, Any]]]) -> None:
    """Two lines per operation, so that a narrow terminal shows them too."""
    for title, entries in operations.items():
        show(Text(f"{title}\n", "bold"))
        rows = [(each["name"], f"{each['formula']}\n{each['rows']}. {each['source']}\n") for each in entries]
        show(table(("", ""), rows, numbers_from=2))
    note("next: sinkscope zoo NAME")


def _show_one(entry: Mapping[str, Any]) -> None:
    show(Text(f"{entry['name']}\n", "bold"))
    facts = [(label, entry[field]) for field, label in FACTS.items()]
    facts[-1:-1] = [("path on a CPU", entry["path"]["cpu"]), ("path on a GPU", entry["path"]["cuda"])]
    show(table(("", ""), facts, numbers_from=2))
    if entry["options"]:
        show(Text(""))
        defaults = [(name, "none" if value is None else value) for name, value in entry["options"].items()]
        show(table(("option", "default"), defaults, numbers_from=2))
    show(Text(""))
    pieces = [(name, value) for name, value in flat(entry["spec"]) if value != []]
    show(table(("spec", ""), pieces, numbers_from=2))
    first = next(iter(entry["options"].items()), None)
    change = "" if first is None else f" --set attention.{first[0]}={first[1]}"
    note(f"next: sinkscope train nano --set attention={entry['name']}{change} --plan")
