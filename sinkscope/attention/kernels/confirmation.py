"""Which kernels have been seen to agree with the reference on this machine: compared when first met, kept for later.

A comparison holds for a GPU, a torch, a triton and these sources. What it found stands in the user's cache, so that the
next process only reads it; where the cache cannot be written, each process compares for itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import warnings
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock
from pydantic import TypeAdapter

from sinkscope.attention.kernels.comparison import Specialization, compared
from sinkscope.attention.oracle import ParityRow, comparing
from sinkscope.attention.pieces import piece
from sinkscope.errors import InputError
from sinkscope.files import cache_dir, sha256, write_json

SOURCES = (*sorted(Path(__file__).parent.glob("*.py")), Path(comparing.__file__))
PATIENCE = 120  # seconds for another process to finish the same comparison; after that, make it here as well


@piece
class Machine:
    """What decides the code that runs: a comparison says nothing of another. `kernels`: `fingerprint()`."""

    gpu: str
    capability: str
    torch: str
    triton: str
    kernels: str


@piece
class Outcome:
    """What a comparison found: `problem` is None where the kernels may be taken. `largest`: difference of values and
    gradients, relative to the reference's largest entry or 1; None where one was NaN or something was raised."""

    machine: Machine
    specialization: str
    problem: str | None
    largest: float | None
    limit: float

    def __str__(self) -> str:
        if self.problem is not None:
            return f"refused on {self.machine.gpu}: {self.problem}"
        return f"compared with the reference on {self.machine.gpu}: off by {self.largest:.2g}, at most {self.limit:g}"


_met: dict[tuple[Machine, Specialization], Outcome] = {}
_comparing = threading.Lock()
_warning = threading.Lock()


@cache
def machine(device: torch.device) -> Machine:
    """Where kernels for this device are compiled and run. A CPU stands for Triton's interpreter."""
    import triton

    gpu, capability = "Triton's interpreter", "none"
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return Machine(gpu, capability, torch.__version__, triton.__version__, fingerprint())


@cache
def fingerprint() -> str:
    """Digest of the sources of kernels and comparison, hexadecimal."""
    return hashlib.sha256("".join(map(sha256, SOURCES)).encode()).hexdigest()


def known(specialization: Specialization, device: torch.device) -> Outcome | None:
    """What was found on this machine, by this process or an earlier one; None where nothing is known yet."""
    here = machine(device)
    if (outcome := _met.get((here, specialization))) is None and (outcome := _read(here, specialization)) is not None:
        _met[here, specialization] = outcome
    return outcome


def confirm(specialization: Specialization, device: torch.device) -> Outcome:
    """What is known, or what a comparison finds now, made by one thread of one process while others wait.

    The first refusal in a process warns.
    """
    if (outcome := known(specialization, device)) is None:
        with _comparing:
            # Asked again: another thread may have compared while this one waited.
            outcome = known(specialization, device) or _compared_once(specialization, device)
    if outcome.problem is not None and _warning.acquire(blocking=False):  # never released: once in a process
        message = f"the fused kernels are {outcome}; the slower exact path runs instead"
        warnings.warn(f"{message} (`make kernels` shows every comparison)", UserWarning, stacklevel=2)
    return outcome


def keep(specialization: Specialization, rows: Iterable[ParityRow], device: torch.device) -> Outcome:
    """The outcome of a comparison, for this process and, where the cache can be written, for later ones.

    What was raised counts for this process alone: a compiler or memory may have been missing.
    """
    rows = list(rows)
    raised = any(row.outcome == "raised" for row in rows)
    errors = [error for row in rows for error in row.errors.values()]
    problem = next((f"{row.note} ({row.case}; {row.dtype})" for row in rows if row.outcome != "agrees"), None)
    largest = None if raised or not all(map(math.isfinite, errors)) else max(errors)
    outcome = Outcome(machine(device), str(specialization), problem, largest, rows[0].limit)
    _met[outcome.machine, specialization] = outcome
    if not raised:
        with suppress(InputError):  # a read-only cache: the next process compares again
            write_json(_path(outcome.machine, specialization), asdict(outcome))
    return outcome


def _compared_once(specialization: Specialization, device: torch.device) -> Outcome:
    with ExitStack() as held:
        with suppress(OSError, InputError):  # without a lock, at worst two processes compare the same
            path = _path(machine(device), specialization)
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(path.with_suffix(".lock"), timeout=PATIENCE))
        waited_for = known(specialization, device)
        return waited_for or keep(specialization, compared(specialization.cases(), device), device)


def _read(here: Machine, specialization: Specialization) -> Outcome | None:
    """What an earlier process left; None for nothing, and for a file that is damaged or of something else."""
    try:
        outcome = TypeAdapter(Outcome).validate_json(_path(here, specialization).read_bytes())
    except (OSError, ValueError):
        return None
    return outcome if (outcome.machine, outcome.specialization) == (here, str(specialization)) else None


def _path(here: Machine, specialization: Specialization) -> Path:
    """A file for each. Raises `InputError` where the user has no home."""
    name = hashlib.sha256(json.dumps([asdict(here), str(specialization)]).encode()).hexdigest()[:32]
    return cache_dir() / "kernels" / f"{name}.json"
