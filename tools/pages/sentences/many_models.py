"""How much text the first table of many inputs was measured on."""

from __future__ import annotations

from tools.pages.stored import read, windows

PAGE = "docs/many_models.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    samples, tokens = windows(read("real/measure_smollm2"))
    return [f"{samples} texts of {tokens} tokens): whatever comes first is the sink"]
