"""How the memory of attention under a mask grows with the length of the text."""

from __future__ import annotations

import re

from tools.pages.stored import figures

PAGE = "docs/zoo.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    lengths, peaks = _grown("window of 256")
    _, of_two_maps = _grown("differential")
    window = figures("attention_masks")["window of 256 / causal, forward and backward, T = 2048"]["ratio"]
    return [
        f"A window of 256 takes {window:.2f} times as long as the causal triangle at T = 2048",
        f"From T = {lengths}, the peak memory of forward and backward grows from {peaks} MB, and for differential "
        f"attention from {of_two_maps} MB",
    ]


def _grown(attention: str) -> tuple[str, str]:
    """Two lengths of a text, and the peaks on them in megabytes."""
    start = f"{attention}: peak of forward and backward"
    [(what, found)] = ((what, found) for what, found in figures("attention_masks").items() if what.startswith(start))
    long, short = re.findall(r"T = (\d+)", what)
    return f"{short} to {long}", f"{found['against']:.0f} to {found['side']:.0f}"
