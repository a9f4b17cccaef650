"""The page of observers in the docs is the one that their docstrings make."""

from __future__ import annotations

from pathlib import Path

from sinkscope.probes.observers.__main__ import page

DOCS = Path(__file__).parents[3] / "docs"


def test_the_docs_say_what_the_docstrings_say() -> None:
    assert (DOCS / "observers.md").read_text(encoding="utf-8") == page(), "python -m sinkscope.probes.observers"
