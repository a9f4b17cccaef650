"""What the figures of the gallery show, for those who do not see them."""

from __future__ import annotations

from tools.pages.stored import read

PAGE = "docs/gallery.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    rates = read("real/measure_smollm2")["positions"]
    return [f"an orange bar of {max(rates):.0f} % at position {rates.index(max(rates))}, next to nothing elsewhere"]
