"""Which devices have confirmed the kernels: a committed record, one entry per compute capability."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from sinkscope.attention.pieces import STRICT
from sinkscope.files import sha256, write_json

FOLDER = Path(__file__).parent
RECORD = FOLDER / "confirmed.json"
SOURCES = ("tiles.py", "forward.py", "backward.py", "launch.py")  # what decides the numbers


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Confirmation:
    """A comparison with the reference in which every case agreed, and what it was made with.

    `capability`: CUDA compute capability (major, minor). `kernels`: `fingerprint()` at the time; kernels that changed
    since are unconfirmed. `date`: UTC, ISO 8601. `versions`: of sinkscope, torch, triton and CUDA. `residuals`: worst
    of values and gradients per dtype, relative to the largest entry or 1.
    """

    capability: tuple[int, int]
    device: str
    date: str
    kernels: str
    versions: dict[str, str]
    cases: int
    residuals: dict[str, float]


def confirmed(device_capability: Sequence[int], path: Path = RECORD) -> bool:
    """Whether the kernels, as they are now, have been confirmed on this compute capability (major, minor)."""
    known = tuple(device_capability)
    return any(entry.capability == known and entry.kernels == fingerprint() for entry in confirmations(path))


@cache
def confirmations(path: Path = RECORD) -> tuple[Confirmation, ...]:
    """The entries of a record, read once."""
    return tuple(TypeAdapter(list[Confirmation]).validate_json(path.read_bytes()))


@cache
def fingerprint() -> str:
    """Digest of the sources that decide the kernels' numbers, hexadecimal."""
    return hashlib.sha256("".join(sha256(FOLDER / name) for name in SOURCES).encode()).hexdigest()


def write(capability: Sequence[int], entry: Confirmation | None, path: Path = RECORD) -> None:
    """Replace what the record says of a compute capability; with None, withdraw it."""
    others = [known for known in confirmations(path) if known.capability != tuple(capability)]
    entries = sorted([*others, *([entry] if entry else [])], key=lambda known: known.capability)
    write_json(path, [json.loads(json.dumps(asdict(known))) for known in entries])
    confirmations.cache_clear()
