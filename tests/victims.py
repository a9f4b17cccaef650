"""Commands whose process dies at a file operation or a moment: imports once, then forks. And a limit on file sizes.

`python -m tests.victims` reads one JSON line for each process and answers with another.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOUCHES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")
"""Operations on files that Python announces to audit hooks."""
F_SETPIPE_SZ, ROOM = 1031, 2**20  # of Linux; what a command prints has to fit


@dataclass(frozen=True)
class End:
    """How a process ended: its exit code, what it printed, how often it touched files below its folder, its seconds."""

    code: int
    said: str
    touches: int
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """No file that this process writes grows beyond `size` bytes: the operating system refuses, as on a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


class Victims:
    """`victims("measure", "nano", folder=…)` runs a command of sinkscope in `folder`, in a process of its own.

    It is killed at its `touch`-th operation on a file below the folder, or after `seconds`.
    """

    def __init__(self, **environment: str) -> None:
        settings = {"PYTHONPATH": str(ROOT), "SINKSCOPE_NO_SHAPE_CHECKS": "1", "OMP_NUM_THREADS": "1", **environment}
        command = (sys.executable, "-m", "tests.victims")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | settings
        )

    def __call__(self, *command: object, folder: Path, touch: int = 0, seconds: float | None = None) -> End:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked: dict[str, Any] = {"command": [str(word) for word in command], "folder": str(folder)}
        asked |= {"touch": touch, "seconds": seconds}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        return End(*json.loads(self.process.stdout.readline()))

    def kills(self, *command: object, folder: Path, calm: End, count: int) -> Iterator[End]:
        """As many deaths of a command, by turns at an operation and at a moment, over all of what `calm` took.

        A process that ends before its moment is no death, and is tried again.
        """
        draw, deaths = random.Random(count), 0
        while deaths < count:
            if deaths % 2:
                end = self(*command, folder=folder, seconds=draw.uniform(0, calm.seconds))
            else:
                end = self(*command, folder=folder, touch=draw.randint(1, calm.touches))
            deaths += end.killed
            yield end

    def close(self) -> None:
        self.process.communicate()


def _victim(asked: dict[str, Any], count: int, said: int) -> None:
    """What the forked process does; the number of its operations goes to the open file `count`."""
    from sinkscope.cli import main

    os.chdir(asked["folder"])
    for stream in (1, 2):
        os.dup2(said, stream)
    touches = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal touches
        if event in TOUCHES and asked["folder"] in os.path.abspath(os.fsdecode(_path_of(arguments[0]))):
            touches += 1
            if touches == asked["touch"]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    code = main(asked["command"])
    os.pwrite(count, str(touches).encode(), 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _path_of(given: object) -> str | bytes:
    return given if isinstance(given, str | bytes) else os.fspath(given) if isinstance(given, os.PathLike) else ""


def _serve() -> None:
    import sinkscope.cli.measure_many
    import sinkscope.measurement
    import sinkscope.measurement.models.running
    import sinkscope.report.writing
    import sinkscope.training  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile() as count:
            began = time.perf_counter()
            reading, said = os.pipe()
            fcntl.fcntl(said, F_SETPIPE_SZ, ROOM)
            child = os.fork()
            if child == 0:
                try:
                    _victim(asked, count.fileno(), said)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            os.close(said)
            if asked["seconds"] is not None:
                time.sleep(asked["seconds"])
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            count.seek(0)
            found = int(count.read() or b"0")
        with os.fdopen(reading, errors="replace") as stream:
            print(json.dumps([code, stream.read(), found, time.perf_counter() - began]), flush=True)


if __name__ == "__main__":
    _serve()
