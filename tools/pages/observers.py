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
Sources are listed in [the bibliography](bibliography.md). `observers="all"` runs every one that applies to the model,
in one pass, except the last, which only runs on request. An observer has no thresholds: those are arguments of the
methods of `Measurement`, so they can change without running the model again.

This page is written by `python -m tools.pages.observers`.
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
