"""`python -m tools.pages.observers`: write `docs/observers.md`, the page of all observers, from their docstrings."""

from __future__ import annotations

from inspect import cleandoc

from sinkscope.measurement import (
    AttentionBefore,
    AttentionMaps,
    GivenTo,
    GradientNorms,
    QueriesAbove,
    StrongestKeys,
    WindowMass,
    every,
)
from sinkscope.measurement.observing import DEFAULT
from tools.pages import write

ON_REQUEST = (GivenTo, QueriesAbove, AttentionBefore, WindowMass, StrongestKeys, AttentionMaps)
HEAD = """# Observers

What `measure` and `observe` can look at: each observer with its equation, its variables, their dimensions and its cost.
Sources are listed in [the bibliography](bibliography.md). `observers="all"` runs every one that applies to the model,
in one pass, except those marked 'not in "all"', which run only when they are given by name or as an object.
`GradientNorms` reads a backward pass, so it is a context of its own. An observer has no thresholds: those are arguments
of the methods of `Measurement`, so they can change without running the model again.

This page is written by `python -m tools.pages.observers`.
"""


def pages() -> dict[str, str]:
    """All observers as Markdown, a section each."""
    default, others = ({type(observer): None for observer in some} for some in (DEFAULT, every()))
    kinds: list[type] = [*dict.fromkeys((*default, *others)), *ON_REQUEST, GradientNorms]
    notes: dict[type, str] = dict.fromkeys(default, "by default")
    notes |= dict.fromkeys(ON_REQUEST, 'not in "all"')
    return {"observers.md": HEAD + "".join(_section(kind, notes.get(kind, "")) for kind in kinds)}


def _section(kind: type, note: str) -> str:
    title = f"{kind.__name__} ({note})" if note else kind.__name__
    return f"\n## {title}\n\n{cleandoc(kind.__doc__ or '')}\n"


if __name__ == "__main__":
    write(pages())
