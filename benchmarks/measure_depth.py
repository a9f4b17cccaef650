"""How many files of the package one measurement enters, and how deep its calls go: what a newcomer has to read.

`measure(nano, ids, [AttentionReceived()])`, the second time, so that imports do not count. The forward of the lab
model is included.

Run: python -m benchmarks.measure_depth
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import sinkscope
from sinkscope import AttentionReceived, load, measure

PACKAGE = str(Path(sinkscope.__file__).parent)


def entered(run: Callable[[], object]) -> tuple[set[str], list[str]]:
    """The files that `run` enters, and the deepest chain of calls, counting the package's own functions only."""
    files: set[str] = set()
    chain: list[str] = []
    deepest: list[str] = []

    def follow(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE):
            return
        if event == "call":
            files.add(path)
            chain.append(f"{Path(path).relative_to(PACKAGE)}:{frame.f_code.co_name}")
            if len(chain) > len(deepest):
                deepest[:] = chain
        elif event == "return" and chain:
            chain.pop()

    sys.setprofile(follow)
    try:
        run()
    finally:
        sys.setprofile(None)
    return files, deepest


if __name__ == "__main__":
    model, ids = load("nano"), torch.randint(100, (4, 64))

    def run() -> object:
        return measure(model, ids, [AttentionReceived()])

    run()
    files, deepest = entered(run)
    print(f"{len(files)} files, {len(deepest)} calls deep:", *deepest, sep="\n  ")
