"""`python -m sinkscope.experiments.sweep.worker`: makes one run after another for the sweep that started it.

What a Python process costs before it can train is then paid once a worker, not once a run. Orders come on stdin, a JSON
line `{"job": FILE, "out": FOLDER, "log": FILE}` each; the answer is what `work` returns, a line on stdout, while all
else that is printed goes to the order's log. A worker ends itself after a run that failed, since a fault may have left
the process (or its GPU) in a state that would spoil the next; and at once when stdin is closed, which is what the end
of the sweep's process looks like, however it came. So nothing outlives a killed sweep and holds locks.
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
    """Make the run of a job, or go on with it, and observe it.

    Returns `SETTLED` where the run has finished or diverged, `BUSY` where another process holds it, and `FAILED` where
    it cannot be made; then the last line on stderr says why.
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
    """Serve until there is nothing more to do; the exit code of the last run."""
    answers = os.fdopen(os.dup(STDOUT), "wb", buffering=0)
    os.dup2(STDERR, STDOUT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep, which then ends its workers
    orders: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    gc.disable()  # what is imported stays: looking through it for garbage, now or after a run, takes long, finds none
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
    with open(STDIN, "rb", buffering=0) as stdin:  # a buffer would be locked when the interpreter wants to close it
        for line in stdin:
            orders.put(line)
    os._exit(0)  # from a thread, and amid a training: every file is whole or absent


def _carry_out(line: bytes, answers: BinaryIO) -> int:
    import torch

    from sinkscope.experiments.jobs import job_from

    order = json.loads(line)
    with open(order["log"], "ab") as log:
        for stream in (STDOUT, STDERR):
            os.dup2(log.fileno(), stream)
    torch.compiler.reset()  # a run must not depend on what was compiled before it
    job = job_from(json.loads(Path(order["job"]).read_text(encoding="utf-8")))
    code = work(job, Path(order["out"]))
    gc.collect()  # a trainer and its model refer to each other
    answers.write(f"{code}\n".encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
