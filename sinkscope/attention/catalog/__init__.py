"""The catalog: a function per attention operation, and what other packages register. See docs/extending.md."""

from collections.abc import Iterator, Mapping
from typing import Any

from sinkscope.attention.catalog import biases, gates, grid, softmaxes
from sinkscope.attention.catalog.entry import Entry, Section
from sinkscope.attention.pieces.opened import PACKAGE
from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError, unknown
from sinkscope.registry import Registry, missing, package_of

SECTIONS: tuple[Section, ...] = (softmaxes.SECTION, grid.SECTION, biases.SECTION, gates.SECTION, gates.BEYOND)
ENTRIES: Registry[Entry] = Registry(
    "operation",
    {name: entry for section in SECTIONS for name, entry in section.entries.items()},
    "attention operation",
)


class _Specs(Mapping[str, AttentionSpec]):
    """The operation of each line with its default options."""

    def __getitem__(self, name: str) -> AttentionSpec:
        return ENTRIES[name].spec

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)


CATALOG = _Specs()
# Other papers' names of the same operation. The explicit attention bias of Sun et al. 2024 puts its learned pair behind
# the keys, that of Gu et al. before them: a softmax does not know the order of its keys.
ALIASES = {"explicit_attention_bias": "kv_bias"}


def resolve(attention: AttentionSpec | Mapping[str, Any] | str | object) -> AttentionSpec:
    """A spec from a spec, its dict, its name in the catalog, or `{"name": ..., option: value, ...}`.

    Raises `InputError` for anything else, and for unknown names and options, with the nearest one.
    """
    if isinstance(attention, AttentionSpec):
        return attention
    if not isinstance(attention, str | Mapping):
        raise InputError(f"attention = {attention!r}: expected a name such as 'sigmoid', its options, or a spec's dict")
    given = {"name": attention} if isinstance(attention, str) else {str(key): attention[key] for key in attention}
    if "name" not in given:
        return AttentionSpec.from_dict(given)
    name = str(given.pop("name"))
    name, package = ALIASES.get(name, name), given.pop(PACKAGE, None)
    if name not in ENTRIES:
        if package is not None:
            raise missing(f"the attention operation '{name}'", package)
        raise unknown("attention operation", name, ENTRIES)
    return ENTRIES[name].make(**given)


def named(spec: AttentionSpec) -> dict[str, Any] | None:
    """`{"name": ..., option: value, ...}`, which `resolve` turns into this spec; None where no line makes it."""
    for name, listed in CATALOG.items():
        if listed == spec:
            return {"name": name, **_package(name)}
    for name, entry in ENTRIES.items():
        if entry.options and (options := entry.options_of(spec)) is not None:
            return {"name": name, **options, **_package(name)}
    return None


def _package(name: str) -> dict[str, str]:
    """What a file says of a line that another package registers."""
    return {PACKAGE: package_of(ENTRIES.added[name])} if name in ENTRIES.added else {}


def sections() -> tuple[Section, ...]:
    """The sections of the catalog, with one for the lines of other packages where there are some."""
    others = Section("From other packages")
    others.entries = {name: entry for name, entry in ENTRIES.items() if name not in ENTRIES.own}
    return (*SECTIONS, others) if others.entries else SECTIONS


def name_of(spec: AttentionSpec) -> str:
    """The catalog name of a spec, with the options that are not the default: `softmax_scaled(alpha=0.2)`.

    `custom` for a spec that no line of the catalog makes.
    """
    if (found := named(spec)) is None:
        return "custom"
    options = ", ".join(f"{option}={value}" for option, value in found.items() if option not in ("name", PACKAGE))
    return f"{found['name']}({options})" if options else str(found["name"])


__all__ = ["ALIASES", "CATALOG", "ENTRIES", "SECTIONS", "Entry", "Section", "name_of", "named", "resolve", "sections"]
