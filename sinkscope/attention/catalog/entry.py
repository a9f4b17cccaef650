"""A line of the catalog."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError, unknown

Maker = Callable[..., AttentionSpec]
Option = Any  # as somebody wrote it: the piece that it goes into says whether it fits


@dataclass(frozen=True)
class Entry:
    """An operation with a name: how it is made, its formula, and where it comes from.

    `rows`: what a row of weights sums to. `acts`: what is learned and where it acts (before or after rotation, per
    head or shared, on the block's input). `effect`: what was published about sinks under it.
    """

    name: str
    maker: Maker
    formula: str
    rows: str
    source: str
    acts: str = "nothing is learned"
    effect: str = "–"

    @cached_property
    def spec(self) -> AttentionSpec:
        """The operation with its default options."""
        return self.maker()

    @property
    def options(self) -> Mapping[str, Any]:
        """Options and their defaults."""
        return {name: option.default for name, option in inspect.signature(self.maker).parameters.items()}

    def make(self, **options: Any) -> AttentionSpec:
        """The operation with these options. Raises `InputError` for unknown ones and values out of range."""
        for option in options:
            if option not in self.options:
                if not self.options:
                    raise InputError(f"attention operation '{self.name}' has no options, got '{option}'")
                raise unknown(f"option of '{self.name}'", option, self.options)
        try:
            return self.maker(**options)
        except InputError as error:
            raise InputError(f"attention operation '{self.name}': {error}") from error

    def options_of(self, spec: AttentionSpec) -> dict[str, Any] | None:
        """The options, other than defaults, with which this line makes exactly this spec; None where there are none."""
        usual = dict(_leaves(self.spec.to_dict()))
        found = {path[-1]: value for path, value in _leaves(spec.to_dict()) if usual.get(path) != value}
        if not found.keys() <= self.options.keys():
            return None
        try:
            return found if self.make(**found) == spec else None
        except InputError:
            return None


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Nested data as paths and values. An option has the name of the field that it sets."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, (*path, str(key)))
    else:
        yield path, value


class Section:
    """Collects lines: `@section.line(formula=..., rows=..., source=...)` over a function that makes the spec."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.entries: dict[str, Entry] = {}

    def line(self, **described: str) -> Callable[[Maker], Maker]:
        def add(maker: Maker) -> Maker:
            name = maker.__name__
            self.entries[name] = Entry(name, maker, **described)
            return maker

        return add
