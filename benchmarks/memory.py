"""What the allocator does with memory that is freed, which decides much of what attention maps cost on a CPU.

glibc gives large tensors back to the kernel when they are freed, and every page of the next one is faulted in again.
Whoever makes many large tensors pays for that, so that a ratio without a word on it says little. Both sides of a
comparison run in one process, whose setting holds for both; each setting has a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

from benchmarks.sides import Figure, report

NEVER = str(1 << 40)  # bytes
SETTINGS = {
    "kept": {"MALLOC_MMAP_THRESHOLD_": NEVER, "MALLOC_TRIM_THRESHOLD_": NEVER, "MALLOC_TOP_PAD_": str(1 << 26)},
    "default": {},
}
SIDE = "--memory-of-this-process"


def keep() -> None:
    """Start this process again as one that keeps freed memory, and so do its children: all sides alike."""
    if any(os.environ.get(name) != value for name, value in SETTINGS["kept"].items()):
        os.environ.update(SETTINGS["kept"])
        os.execv(sys.executable, [sys.executable, *_module(), *sys.argv[1:]])


def as_usual() -> dict[str, str]:
    """The environment for a process whose memory is weighed: the allocator's own way of keeping it."""
    return {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}


def in_both_settings(name: str, figures: Callable[[], list[Figure]]) -> None:
    """Report `figures` of a process that keeps freed memory and of one with glibc's defaults, one thread each.

    Bounds hold for the first; the second stands beside it. Linux with glibc; elsewhere both are the default.
    """
    if SIDE in sys.argv:
        print(json.dumps([asdict(figure) for figure in figures()]))
        return
    found: list[Figure] = []
    for setting, variables in SETTINGS.items():
        environment = as_usual() | variables | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, *_module(), *sys.argv[1:], SIDE]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        for row in json.loads(done.stdout.splitlines()[-1]):
            figure = Figure(**row)
            bound = {} if setting == "kept" else {"bound": "none", "reached": True}
            found.append(replace(figure, what=f"{figure.what} [freed memory: {setting}]", **bound))
    report(name, found)


def _module() -> list[str]:
    """How the running module is started again."""
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "run a benchmark as python -m benchmarks.NAME"
    return ["-m", spec.name]
