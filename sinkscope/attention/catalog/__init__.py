"""The catalogue: a function per attention operation. How to add one is in docs/extending.md."""

from sinkscope.attention.catalog import biases, gates, grid, softmaxes
from sinkscope.attention.catalog.entry import Entry, Section
from sinkscope.attention.spec import AttentionSpec

SECTIONS: tuple[Section, ...] = (softmaxes.SECTION, grid.SECTION, biases.SECTION, gates.SECTION, gates.BEYOND)
ENTRIES: dict[str, Entry] = {name: entry for section in SECTIONS for name, entry in section.entries.items()}
CATALOG: dict[str, AttentionSpec] = {name: entry.spec for name, entry in ENTRIES.items()}


def name_of(spec: AttentionSpec) -> str:
    """The catalogue name of a spec with its default options; `custom` for any other."""
    return next((name for name, listed in CATALOG.items() if listed == spec), "custom")


__all__ = ["CATALOG", "ENTRIES", "SECTIONS", "Entry", "Section", "name_of"]
