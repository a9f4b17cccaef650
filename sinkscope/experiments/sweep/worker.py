"""A process that trains one run after another for the sweep that started it.

So the start of a Python process is paid once per worker, not once per run. An order is a JSON line on stdin,
`{"job": FILE, "out": FOLDER, "log": FILE}`; the answer is the exit code of `work`, a line on stdout. Everything else
that is printed goes to the order's log. A worker ends after a failed run, since a fault may have left the process (or
its GPU) in a state that would spoil the next one; and at once when stdin closes, which is how the end of the sweep's
process appears. So nothing outlives a killed sweep and holds locks.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, BinaryIO

from sinkscope.errors import InputError

if TYPE_CHECKING:
    from sinkscope.experiments.jobs import Job

SETTLED, FAILED, BUSY = 0, 2, 75  # exit codes
STDIN, STDOUT, STDERR = 0, 1, 2  # file descriptors


def work(job: Job, out: Path, device: str = "auto") -> int:
    """Train the run of a job, or continue it, and observe it.

    Returns `SETTLED` if the run has finished or diverged, `BUSY` if another process holds it, and `FAILED` if it cannot
    be trained; then the last line on stderr says why.
    """
    from sinkscope.experiments.sweep.store import RunStore
    from sinkscope.training import Busy

    try:
        RunStore(out).make(job, device)
    except Busy:
        return BUSY
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return FAILED
    return SETTLED


def main() -> int:
    """Serve orders until a run fails; return its exit code."""
    # Answers keep the real stdout; what is printed, also by C code, goes where stderr goes.
    answers = os.fdopen(os.dup(STDOUT), "wb", buffering=0)
    os.dup2(STDERR, STDOUT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep, which ends its workers
    orders: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    gc.disable()  # imports stay: scanning them for garbage takes long and finds none
    import_module("sinkscope.experiments.sweep.store")
    gc.freeze()
    gc.enable()
    from sinkscope.training import keep_freed_memory

    keep_freed_memory()
    code = SETTLED
    while code in (SETTLED, BUSY):
        code = _carry_out(orders.get(), answers)
    return code


def _listen(orders: SimpleQueue[bytes]) -> None:
    with open(STDIN, "rb", buffering=0) as stdin:  # the interpreter could not close a buffer that a thread reads
        for line in stdin:
            orders.put(line)
    os._exit(0)  # safe amid training: files are written atomically


def _carry_out(line: bytes, answers: BinaryIO) -> int:
    import torch

    from sinkscope.experiments.jobs import job_from

    order = json.loads(line)
    with open(order["log"], "ab") as log:
        for stream in (STDOUT, STDERR):
            os.dup2(log.fileno(), stream)
    torch.compiler.reset()  # a run must not depend on earlier compilations
    job = job_from(json.loads(Path(order["job"]).read_text(encoding="utf-8")))
    code = work(job, Path(order["out"]))
    gc.collect()  # a trainer and its model refer to each other
    answers.write(f"{code}\n".encode())
    return code
