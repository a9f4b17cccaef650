"""A bounded pool of processes on this machine, a run each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.experiments.work import BUSY, SETTLED
from sinkscope.files import write_json
from sinkscope.training import Recipe

POLL = 0.2  # seconds between two looks at the processes
AGAIN = 5.0  # seconds until a run that another process holds is tried again

Recipes = Mapping[str, Recipe]  # by the name of the run's folder


@dataclass
class Sweep:
    """Where a sweep stands: names of runs. `elsewhere`: held by another process; `failed` says why."""

    waiting: list[str]
    running: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def threads_each(workers: int) -> int:
    """Threads for each of `workers` processes, so that together they fill the machine."""
    return max(1, (os.cpu_count() or 1) // workers)


def work_locally(recipes: Recipes, out: Path, workers: int, watch: Callable[[Sweep], None]) -> Sweep:
    """Run all recipes, at most `workers` at once, each with its share of the processor's threads.

    A run that fails is noted and does not stop the others; one that another process holds is tried again until it is
    settled. `watch` sees every change and a few looks a second. Interrupted, the processes are ended; what they have
    saved is resumed next time.
    """
    if workers < 1:
        raise InputError(f"workers = {workers}: at least 1")
    sweep = Sweep(waiting=list(recipes))
    with tempfile.TemporaryDirectory(prefix="sinkscope-sweep-") as scratch:
        pool = _Pool(recipes, out, Path(scratch), threads_each(workers))
        try:
            while sweep.waiting or sweep.running or sweep.elsewhere:
                pool.start_some(sweep, workers)
                watch(sweep)
                time.sleep(POLL)
                pool.collect(sweep)
        finally:
            pool.end()
    watch(sweep)
    return sweep


class _Pool:
    def __init__(self, recipes: Recipes, out: Path, scratch: Path, threads: int) -> None:
        self.recipes, self.out, self.scratch = recipes, out, scratch
        counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
        self.environment = os.environ | dict.fromkeys(counts, str(threads)) | {"TOKENIZERS_PARALLELISM": "false"}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.later: deque[tuple[float, str]] = deque()

    def start_some(self, sweep: Sweep, workers: int) -> None:
        while self.later and self.later[0][0] <= time.monotonic():
            name = self.later.popleft()[1]
            sweep.elsewhere.remove(name)
            sweep.waiting.append(name)
        while sweep.waiting and len(self.processes) < workers:
            name = sweep.waiting.pop(0)
            sweep.running.append(name)
            self.processes[name] = self._started(name)

    def collect(self, sweep: Sweep) -> None:
        for name, process in list(self.processes.items()):
            if (code := process.poll()) is None:
                continue
            del self.processes[name]
            sweep.running.remove(name)
            if code == SETTLED:
                sweep.done.append(name)
            elif code == BUSY:
                sweep.elsewhere.append(name)
                self.later.append((time.monotonic() + AGAIN, name))
            else:
                sweep.failed[name] = self._reason(name, code)

    def end(self) -> None:
        """Stop what is still running."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        recipe = self.scratch / f"{name}.json"
        write_json(recipe, self.recipes[name].model_dump(mode="json"))
        command = [sys.executable, "-m", "sinkscope.experiments.work", str(recipe), str(self.out)]
        with (self.scratch / f"{name}.err").open("wb") as errors:
            return subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )

    def _reason(self, name: str, code: int) -> str:
        text = (self.scratch / f"{name}.err").read_text(encoding="utf-8", errors="replace").strip()
        last = text.splitlines()[-1] if text else "it said nothing"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}: {last}"
