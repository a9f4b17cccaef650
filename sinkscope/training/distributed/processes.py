"""Several processes that train one model: the rank of this one, and how they share decisions and errors.

A launcher (`torchrun`, `accelerate launch`) starts the same command several times and sets the rank of each in its
environment. Only the first process writes, locks and prints; the others receive its decisions.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist

from sinkscope.errors import InputError, unknown

PARALLEL = ("auto", "ddp", "fsdp")
TIMEOUT = timedelta(hours=3)  # the other processes wait while one prepares a large corpus
# gloo has no error class of its own
CONNECTION_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")

Result = TypeVar("Result")


class ReportedElsewhere(InputError):
    """Bad input that the main process reports; the other processes end without printing it again."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train together: number `rank` of `world`.

    `launched`: started by a launcher, perhaps alone. With one process, every method is a plain call.
    """

    rank: int = 0
    world: int = 1
    launched: bool = False

    @property
    def main(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def together(self, work: Callable[[], Result]) -> Result:
        """Do `work` in every process. An `InputError` in one ends all: the main process raises it, the others raise
        `ReportedElsewhere`. Collective calls inside `work` must not depend on its success.
        """
        if self.world == 1:
            return work()
        result, failure = None, None
        try:
            result = work()
        except InputError as error:
            failure = error
        # No process raises before all have exchanged messages: the others would wait for it until the timeout.
        messages: list[str | None] = [None] * self.world
        dist.all_gather_object(messages, None if failure is None else str(failure))
        first = next((rank for rank, message in enumerate(messages) if message is not None), None)
        if first is None:
            return cast(Result, result)
        raise self.reported_once(failure or InputError(f"process {first} of {self.world}: {messages[first]}"))

    def from_main(self, work: Callable[[], Result]) -> Result:
        """Do `work` in the main process; every process gets the result, or an error as `together` raises it."""
        box: list[Any] = [self.together(lambda: work() if self.main else None)]
        if self.world > 1:
            dist.broadcast_object_list(box, src=0)
            dist.barrier()  # the main process may end next, and would close the connection on those that still read
        return cast(Result, box[0])

    def reported_once(self, error: InputError) -> InputError:
        """The error that this process raises for one that all processes have."""
        return error if self.main else ReportedElsewhere(str(error))

    def agree(self, what: str, value: str) -> None:
        """Raises `InputError` unless `value` is the same in all processes."""
        main_value = self.from_main(lambda: value)

        def compare() -> None:
            if value != main_value:
                raise InputError(f"{what} differs from that of process 0: {value} here, {main_value} there")

        self.together(compare)

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """If one process ends in the middle of training, end the others with one line too.

        The main process raises `InputError`, the others `ReportedElsewhere`.
        """
        try:
            yield
        except RuntimeError as error:
            lost = isinstance(error, dist.DistError) or any(sign in str(error) for sign in CONNECTION_LOST)
            if self.world == 1 or not lost:
                raise
            message = "another process of this training has ended: its own output says why"
            raise self.reported_once(InputError(message)) from error

    def leave(self) -> None:
        """Leave the process group at the end of a program, after all processes are done."""
        if self.launched and dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


def joined(device: str) -> Processes:
    """This process with those that its launcher started; alone without a launcher.

    With `device` "cpu" they communicate over gloo, otherwise over their accelerators' backend. Raises `InputError` for
    an environment that is not a launcher's, and if the other processes cannot be reached.
    """
    if "RANK" not in os.environ:
        if os.environ.get("WORLD_SIZE", "") not in ("", "1"):
            raise InputError("WORLD_SIZE is set but not RANK: start the processes with torchrun or accelerate launch")
        return Processes()
    from accelerate import PartialState  # type: ignore[import-untyped]

    try:
        state = PartialState(cpu=device == "cpu", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"cannot join the other processes: {' '.join(str(error).split())}") from error
    atexit.register(_close)
    return Processes(state.process_index, state.num_processes, launched=True)


def _close() -> None:
    """Close gloo's connections: their threads would abort an interpreter that exits with them open."""
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


def uses_sharding(parallel: str, device: str, processes: Processes) -> bool:
    """Whether the weights are to be sharded. Raises `InputError` for another word, and if they cannot be."""
    if parallel not in PARALLEL:
        raise unknown("parallel", parallel, PARALLEL)
    launcher = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if launcher and parallel == "ddp":
        raise InputError("the launcher is configured for FSDP: launch without it, or leave 'parallel' at auto")
    if not (launcher or parallel == "fsdp"):
        return False
    if not processes.launched:
        raise InputError("parallel 'fsdp' needs several processes: start them with torchrun or accelerate launch")
    require_gpus(device)
    return True


def require_gpus(device: str) -> None:
    """Raises `InputError` on a CPU, where accelerate would silently keep the whole model in every process."""
    if device == "cpu":
        raise InputError("weights are sharded over GPUs only: on CPUs use parallel 'ddp'")
