"""Two or more sides of one comparison, measured in turns within one process, so that the machine's mood cancels."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"
REAL = RESULTS.parent / "real"  # what was measured on pretrained models


@dataclass(frozen=True)
class Figure:
    """One figure to reach: what was measured, both sides, their ratio, and the bound."""

    what: str
    side: float
    against: float
    unit: str
    bound: str
    reached: bool

    @property
    def ratio(self) -> float:
        return self.side / self.against


def in_turns(
    sides: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each side over `rounds` rounds; the sides take turns, after one round that is not counted.

    `clock`: `time.thread_time` for what runs on one thread of a machine that others use as well.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, run in sides.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def at_most(what: str, side: float, against: float, bound: float, unit: str = "s") -> Figure:
    """A figure whose ratio must not exceed `bound`."""
    return Figure(what, side, against, unit, f"<= {bound}", side / against <= bound)


def at_least(what: str, side: float, against: float, bound: float, unit: str = "s") -> Figure:
    """A figure whose ratio must reach `bound`."""
    return Figure(what, side, against, unit, f">= {bound}", side / against >= bound)


def beside(what: str, side: float, against: float, unit: str = "s") -> Figure:
    """A figure without a bound, printed for its own sake."""
    return Figure(what, side, against, unit, "none", True)


def report(name: str, figures: list[Figure], details: Mapping[str, object] | None = None) -> None:
    """Print both sides and the ratio of each figure; with `--save`, keep them under results/ with their provenance, and
    with whatever else was found."""
    for figure in figures:
        mark = "no bound" if figure.bound == "none" else "reached" if figure.reached else "NOT REACHED"
        sides = f"{figure.side:.4g} {figure.unit} against {figure.against:.4g} {figure.unit}"
        print(f"{figure.what}: {sides}, ratio {figure.ratio:.3f} ({figure.bound}): {mark}")
    if "--save" in sys.argv:
        from sinkscope.files import write_json

        rows = [asdict(figure) | {"ratio": figure.ratio} for figure in figures]
        more = {"details": dict(details)} if details else {}
        write_json(RESULTS / f"{name}.json", {"figures": rows, **more, "provenance": provenance()})


def provenance() -> dict[str, object]:
    """Versions, machine, malloc settings, threads and device of this process, and how busy the cores were: a load above
    the number of threads says that others ran beside it, so that ratios of one process hold and seconds do not."""
    packages = ("sinkscope", "torch", "transformers")
    return {
        "versions": {package: version(package) for package in packages} | {"python": platform.python_version()},
        "machine": platform.machine(),
        "malloc": {name: value for name, value in sorted(os.environ.items()) if name.startswith("MALLOC_")},
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
