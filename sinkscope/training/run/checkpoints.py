"""Checkpoints that can be trusted: a manifest of hashes, written last, proves that a folder is whole.

`transformers.Trainer` writes a checkpoint file by file into its final place, so a killed process leaves a folder that
looks like a checkpoint. A run resumes only from a folder whose manifest agrees with every file in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.files import sha256, write_json
from sinkscope.model.checkpoints import list_checkpoints

MANIFEST = "manifest.json"
SHARDED_OPTIMIZER = "optimizer.bin"  # accelerate's name; Trainer's own is optimizer.pt

Announce = Callable[[str], None]


def seal(checkpoint: Path) -> None:
    """Write the manifest: the hash of every file, atomically and after all of them."""
    write_json(checkpoint / MANIFEST, {"files": _hashes(checkpoint)})


def problem(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in a phrase; None if its manifest agrees with its files."""
    if not (checkpoint / MANIFEST).is_file():
        return "is incomplete (the process ended while writing it)"
    try:
        expected = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        actual = _hashes(checkpoint)
        # From both: a file that is missing and one that is not listed are both faults.
        names = {**expected, **actual}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"is damaged (its {MANIFEST} cannot be read: {error})"
    differing = [name for name in names if expected.get(name) != actual.get(name)]
    return f"is damaged ({', '.join(sorted(differing))} not as its manifest says)" if differing else None


def newest_whole(folder: Path, announce: Announce) -> Path | None:
    """The newest checkpoint that can be trusted. Newer ones are set aside, each with an announcement."""
    for checkpoint in reversed(list_checkpoints(folder)):
        fault = problem(checkpoint)
        if fault is None:
            return checkpoint
        announce(f"{checkpoint.name} {fault}: set aside as {_set_aside(checkpoint).name}")
    return None


def require(checkpoint: Path, *, sharded: bool) -> None:
    """Raises `InputError` in a process that does not see the checkpoint of the main one, or cannot load it.

    A sharded run names its optimizer's state by parameters, an unsharded one numbers it.
    """
    if not (checkpoint / MANIFEST).is_file():
        raise InputError(f"cannot see {checkpoint}: all machines of a training need to share its folder")
    was_sharded = (checkpoint / SHARDED_OPTIMIZER).exists()
    if was_sharded != sharded:
        before, now = ("fsdp", "ddp") if was_sharded else ("ddp", "fsdp")
        raise InputError(
            f"{checkpoint} was written with parallel='{before}' and cannot be continued with '{now}': continue with "
            f"'{before}', on any number of processes"
        )


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints, manifests first, so that a half-removed one counts as incomplete."""
    for checkpoint in list_checkpoints(folder)[:-keep]:
        (checkpoint / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(checkpoint)


def _hashes(checkpoint: Path) -> dict[str, str]:
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(checkpoint).as_posix(): sha256(path) for path in files}


def _set_aside(checkpoint: Path) -> Path:
    for number in range(1, 1000):
        target = checkpoint.with_name(f"damaged-{checkpoint.name}-{number}")
        if not target.exists():
            return checkpoint.rename(target)
    raise InputError(f"{checkpoint.parent} holds too many damaged checkpoints: remove them")
