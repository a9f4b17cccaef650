"""`python -m tools.pages.observers`: write `docs/observers.md`, the page of all observers, from their docstrings."""

from __future__ import annotations

from inspect import cleandoc

from sinkscope.measurement import every
from sinkscope.measurement.observers.kept import AttentionMaps
from sinkscope.measurement.observers.observer import Observer
from sinkscope.measurement.observing import DEFAULT
from tools.pages import write

HEAD = """# Observers

What `measure` and `observe` can look at: each observer with its equation, its variables, their dimensions and its cost.
Sources are listed in [the bibliography](bibliography.md). The first three run by default,
`observers="all"` runs every one that a model has something for, in one pass; the last is made only when asked for.
Thresholds are no part of an observer: they belong to the methods of `Measurement`, so that they can change without
running the model again.

This page is printed by `python -m tools.pages.observers`.
"""


def pages() -> dict[str, str]:
    """All observers as Markdown, a section each."""
    return {
        "observers.md": HEAD
        + "".join(_section(observer) for observer in dict.fromkeys((*DEFAULT, *every(), AttentionMaps())))
    }


def _section(observer: Observer) -> str:
    default = " (by default)" if observer in DEFAULT else ""
    return f"\n## {type(observer).__name__}{default}\n\n{cleandoc(type(observer).__doc__ or '')}\n"


if __name__ == "__main__":
    write(pages())
