"""The local backend: a bounded pool of processes on this machine, each training one run after another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path

import torch

from sinkscope.experiments.jobs import as_json
from sinkscope.experiments.sweep.sweeping import RETRIES, Ended, Jobs, Sweep, Watch, drive, require_workers
from sinkscope.experiments.sweep.worker import BUSY, SETTLED
from sinkscope.files import write_json
from sinkscope.training.machine import processors

UNANSWERED = 1  # for a process that ended with code 0 before it answered
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)  # not a fault of the run, which would recur
POLL = 0.05  # seconds between checks of the processes
THREADS = "OMP_NUM_THREADS"  # set by a user, or by a cluster's scheduler
DEVICES = "CUDA_VISIBLE_DEVICES"  # CUDA's own variable: the GPUs that a process may use
# Its arguments are where modules are looked for. `-m` would look in the working directory first, where a user's
# `random.py` would be taken for the standard library's.
START = "import sys; sys.path[:] = sys.argv[1:]; from sinkscope.experiments.sweep.worker import main; sys.exit(main())"
COMMAND = (sys.executable, "-c", START)


def threads_each(workers: int) -> int:
    """Threads for each of `workers` processes: OMP_NUM_THREADS, else an equal share of the processors."""
    threads = os.environ.get(THREADS, "").partition(",")[0].strip()  # nested parallelism lists one number per level
    return int(threads) if threads.isdigit() and int(threads) > 0 else max(1, processors() // workers)


def visible_gpus(environment: Mapping[str, str], installed: Callable[[], int]) -> list[str]:
    """The GPUs visible to processes of this environment; CUDA ignores the list from a negative entry on."""
    if DEVICES not in environment:
        return [str(index) for index in range(installed())]
    named = (name.strip() for name in environment[DEVICES].split(","))
    return list(takewhile(lambda name: name and not name.startswith("-"), named))


def gpu_of(number: int, visible: Sequence[str]) -> dict[str, str]:
    """The environment that gives worker `number` one GPU, in turn; empty with fewer than two GPUs."""
    return {DEVICES: visible[number % len(visible)]} if len(visible) > 1 else {}


def work_locally(jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep:
    """Train all runs, at most `workers` at once, each with its share of the threads, on one of the GPUs.

    A run whose process is killed is resumed from its newest checkpoint, up to `RETRIES` times. If this process is
    killed, its workers end by themselves. See `drive` for the rest. Raises `InputError` for fewer than one worker.
    """
    require_workers(workers)
    with tempfile.TemporaryDirectory(prefix="sinkscope-sweep-") as scratch:
        return drive(jobs, Pool(jobs, out, Path(scratch), threads_each(workers)), workers, watch)


class Pool:
    """Worker processes: idle ones, which are used first, and busy ones by the name of their run."""

    def __init__(self, jobs: Jobs, out: Path, scratch: Path, threads: int) -> None:
        self.jobs, self.out, self.scratch = jobs, out, scratch
        counts = (THREADS, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
        self.environment = os.environ | dict.fromkeys(counts, str(threads)) | {"TOKENIZERS_PARALLELISM": "false"}
        self.gpus = visible_gpus(os.environ, torch.cuda.device_count)
        self.idle: list[_Worker] = []
        self.busy: dict[str, _Worker] = {}
        self.killed: Counter[str] = Counter()

    def start(self, name: str) -> None:
        job, log = self.scratch / f"{name}.json", self._log(name)
        write_json(job, as_json(self.jobs[name]))
        log.touch()
        self.busy[name] = self._free() or self._new(log)
        self.busy[name].order({"job": str(job), "out": str(self.out), "log": str(log)})

    def ended(self) -> Iterator[Ended]:
        time.sleep(POLL)
        for name, worker in list(self.busy.items()):
            if (code := worker.answer()) is None:
                continue
            del self.busy[name]
            if code in (SETTLED, BUSY):
                self.idle.append(worker)
                yield Ended(name, code)
                continue
            worker.end()
            # Popen gives minus the signal's number for a process that a signal ended.
            if -code in FROM_OUTSIDE and self.killed[name] < RETRIES:
                self.killed[name] += 1
                self.start(name)
            else:
                yield Ended(name, code, self._reason(name, code))

    def stop(self) -> None:
        for worker in [*self.idle, *self.busy.values()]:
            worker.end()

    def _free(self) -> _Worker | None:
        while self.idle:
            worker = self.idle.pop()
            if worker.alive():
                return worker
            worker.end()
        return None

    def _new(self, log: Path) -> _Worker:
        taken = {worker.number for worker in (*self.idle, *self.busy.values())}
        number = next(number for number in count() if number not in taken)
        return _Worker(self.environment | gpu_of(number, self.gpus), log, number)

    def _log(self, name: str) -> Path:
        return self.scratch / f"{name}.log"

    def _reason(self, name: str, code: int) -> str:
        if code < 0:
            return f"killed by signal {-code}" + (f", {self.killed[name]} times before" if self.killed[name] else "")
        text = self._log(name).read_text(encoding="utf-8", errors="replace").strip()
        return f"exit code {code}: {text.splitlines()[-1] if text else 'no message'}"


class _Worker:
    """One process that serves orders. `number`: the lowest that no living worker has."""

    def __init__(self, environment: dict[str, str], log: Path, number: int) -> None:
        self.number = number
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                (*COMMAND, *filter(None, sys.path), os.getcwd()),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout
        os.set_blocking(self.answers.fileno(), False)

    def alive(self) -> bool:
        return self.process.poll() is None

    def order(self, fields: dict[str, str]) -> None:
        with suppress(BrokenPipeError):  # the process was just killed, which `answer` reports
            self.orders.write(f"{json.dumps(fields)}\n".encode())

    def answer(self) -> int | None:
        """The exit code of the work, or of the process if it ended without an answer; None while it works."""
        # Polled before reading: a process may answer and end in between, and its answer must not be lost.
        ended = self.process.poll()
        if answer := self.answers.read(16):
            return int(answer)
        return ended or (None if ended is None else UNANSWERED)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.orders.close()
        self.answers.close()
