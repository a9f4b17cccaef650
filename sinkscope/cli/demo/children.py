"""Training runs as child processes: started, watched, and stopped whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO

from sinkscope.cli.demo.plan import DemoPlan

PATIENCE = 10.0
LAST_LINES = 8


class ChildFailed(RuntimeError):
    """A training process ended with an error; the message ends with its last lines."""


@dataclass(frozen=True)
class Child:
    """One `sinkscope train` process; `messages` holds its standard error."""

    label: str
    process: subprocess.Popen[bytes]
    messages: IO[bytes]

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Raise `ChildFailed` if the process ended with an error."""
        code = self.process.poll()
        if code:
            self.messages.seek(0)
            lines = self.messages.read().decode(errors="replace").splitlines()[-LAST_LINES:]
            text = "\n".join(f"  {line}" for line in lines)
            raise ChildFailed(f"training {self.label} ended with exit code {code}; its last lines:\n{text}")

    def stop(self) -> None:
        """Terminate the process, and kill it if it does not end. Its run can be continued."""
        if self.running:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def command(plan: DemoPlan, attention: str) -> list[str]:
    """The command line of one run. Files in the working directory are not imported in place of modules (-P)."""
    changes = [word for override in plan.overrides(attention) for word in ("--set", override)]
    return [
        *(sys.executable, "-P", "-m", "sinkscope", "train", plan.recipe),
        *(*changes, "--out", str(plan.runs), "--resume"),
    ]


@contextmanager
def children(plan: DemoPlan) -> Iterator[list[Child]]:
    """Start the plan's runs; none is left running when the block ends, for whatever reason.

    A request to terminate this process counts as Ctrl-C, so that it leaves no children running either.
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(plan.threads)}
    with ExitStack() as stack:
        stack.enter_context(_termination_interrupts())
        started = []
        for attention in plan.attentions:
            messages = stack.enter_context(tempfile.TemporaryFile())
            # In a session of its own a child does not get the terminal's Ctrl-C: the parent stops it.
            process = subprocess.Popen(
                command(plan, attention),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                start_new_session=True,
            )
            child = Child(attention, process, messages)
            stack.callback(child.stop)
            started.append(child)
        yield started


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
