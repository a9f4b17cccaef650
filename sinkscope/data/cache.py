"""Folders that are made once, by one process, and trusted only while they are what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from sinkscope.errors import InputError
from sinkscope.files import sha256, sweep, write_json, writing

MANIFEST = "manifest.json"


def cached_folder(folder: Path, build: Callable[[Path], None], *, reuse: bool = True) -> Path:
    """Return `folder`, filled by `build(draft)` unless an intact one stands there already.

    One process builds, others wait and then use what it made. The folder takes its name when it is complete: an error
    or a kill in `build` leaves no entry. Intact means that every file has the size and sha256 of the manifest written
    with it; anything else is built again. Raises `InputError` if the cache has to be written and cannot be.
    """
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        if reuse and is_intact(folder):  # a cache of others, which is read alone
            return folder
        reason = f"{error.strerror or error} (SINKSCOPE_CACHE names another place for caches)"
        raise InputError(f"cannot write {folder}: {reason}") from error
    try:
        if not (reuse and is_intact(folder)):
            sweep(folder)
            with writing(folder) as draft:
                draft.mkdir()
                build(draft)
                write_json(draft / MANIFEST, _manifest(draft))
    finally:
        lock.release()
    return folder


def is_intact(folder: Path) -> bool:
    """Whether the folder's files are exactly those of its manifest; sizes are compared before anything is read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = [(folder / name, entry) for name, entry in manifest.items()]
        right_sizes = all(path.stat().st_size == entry["bytes"] for path, entry in files)
        return bool(files) and right_sizes and all(sha256(path) == entry["sha256"] for path, entry in files)
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return False


def _manifest(folder: Path) -> dict[str, dict[str, int | str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files
    }
