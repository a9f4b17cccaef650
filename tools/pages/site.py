"""Blocks that only the site has, because they are long, and made by the code that they describe."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc, isabstract

from sinkscope import measurement
from sinkscope.measurement.observing import DEFAULT
from tests.caches import contract as streaming
from tests.families import contract
from tests.families.sweep import attaching
from tests.families.sweep import table as sweep
from tools.site.api import exported as names_of


def observers() -> str:
    """A section per observer that is exported, with its docstring: the default ones first, those on request last."""
    default, named = ({type(each): None for each in some} for some in (DEFAULT, measurement.every()))
    public = [value for name in names_of(measurement) if isinstance(value := getattr(measurement, name), type)]
    exported = [kind for kind in public if issubclass(kind, measurement.Observer) and not isabstract(kind)]
    notes = (
        dict.fromkeys(exported, ' (not in "all")') | dict.fromkeys(named, "") | dict.fromkeys(default, " (by default)")
    )
    kinds = dict.fromkeys([*default, *named, *exported, measurement.GradientNorms])
    sections = (f"## {kind.__name__}{notes.get(kind, '')}\n\n{cleandoc(kind.__doc__ or '')}" for kind in kinds)
    return "\n\n".join(sections)


BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/families.md": {"families": contract.table, "attaching": attaching.section, "sweep": sweep.section},
    "docs/observers.md": {"observers": observers},
    "docs/streaming_families.md": {"streams": streaming.table},
}
