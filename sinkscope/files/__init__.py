"""Files that are either whole or absent."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from sinkscope.errors import InputError

__all__ = [
    "LOCK",
    "MANIFEST",
    "Busy",
    "append_line",
    "cache_dir",
    "cached_folder",
    "check_room",
    "check_writable",
    "finite",
    "indented",
    "is_intact",
    "locked",
    "manifest_of",
    "replacing",
    "sha256",
    "sweep",
    "whole_lines",
    "write_json",
    "write_text",
    "writing",
]

LOCK = "run.lock"  # in a folder that one process at a time writes
MANIFEST = "manifest.json"  # in a cached folder
_ROOM = ".unfinished"  # suffix of the hidden folder, next to the target, in which a write happens
_RANDOM = "?" * 8  # the random characters before that suffix
_NEXT = ".next"  # inside a folder: the complete files that replace its old ones
_ASIDE = ".replaced"  # suffix of a folder that waits for its replacement


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`, which is renamed to `path` only if the block ends without an error.

    Works for files and for folders, which are replaced as a whole. A failed write (full disk, read-only folder) raises
    `InputError` and leaves the old `path` unchanged. `sweep` removes what a killed process leaves. A link stays, and
    what it leads to is replaced. Raises `InputError` for devices and pipes too: a rename would put a file in their
    place.
    """
    target = _behind_link(Path(path))
    if Path(path).exists() and not (target.is_file() or target.is_dir()):
        raise InputError(f"cannot write {path}: it is a device or a pipe, expected a file or a folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_ROOM, dir=target.parent))
    except FileExistsError as error:
        raise _not_written(target, f"{error.filename} is not a folder") from error
    except OSError as error:
        raise _not_written(target, _reason(error)) from error
    try:
        draft = room / target.name
        yield draft
        _flush(draft)
        _rename(draft, target, aside=room / f"{target.name}{_ASIDE}")
        _sync(target.parent)
    except Exception as error:
        if not _failed_write(error, room, target):
            raise
        raise _not_written(target, _reason(error)) from error
    finally:
        shutil.rmtree(room, ignore_errors=True)


class _NotWritten(InputError):
    """A failed write of `path`. Where that is a draft, which means nothing to users, the outer write names its own."""

    path: Path
    reason: str


def _not_written(path: Path, reason: str) -> _NotWritten:
    error = _NotWritten(f"cannot write {path}: {reason}")  # with its message alone, so that it can be pickled
    error.path, error.reason = path, reason
    return error


@contextmanager
def replacing(folder: str | Path, old: Callable[[Path], Iterable[Path]]) -> Iterator[Path]:
    """Yield an empty draft, whose files move to `folder` if the block ends without an error.

    A new folder appears as a whole. In an existing one, the files `old(folder)` are removed before the new ones move
    in, and other files stay; so old and new files are never mixed, even after a kill. Nothing changes until the draft
    is complete on the disk: a failed write raises `InputError` and leaves the old files.
    """
    target = Path(folder)
    if not target.is_dir():
        with writing(target) as draft:
            draft.mkdir()
            yield draft
        return
    sweep(target / _NEXT)
    shutil.rmtree(target / _NEXT, ignore_errors=True)
    try:
        with writing(target / _NEXT) as draft:
            draft.mkdir()
            yield draft
    except _NotWritten as error:
        if error.path != target / _NEXT:
            raise
        raise _not_written(target, error.reason) from error
    try:
        for path in old(target):
            path.unlink(missing_ok=True)
            if path.parent != target and path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()
        for entry in sorted((target / _NEXT).iterdir()):
            _moved_in(entry, target / entry.name)
        (target / _NEXT).rmdir()
        _sync(target)
    except OSError as error:
        raise _not_written(target, _reason(error)) from error


def _moved_in(entry: Path, target: Path) -> None:
    """Move an entry to its target; an existing folder keeps its other files."""
    if entry.is_dir() and target.is_dir():
        for inner in entry.iterdir():
            _moved_in(inner, target / inner.name)
        entry.rmdir()
    else:
        os.replace(entry, target)


def sweep(path: str | Path) -> None:
    """Remove what killed writers of `path`, or of anything below it, left; no other process may be writing there.

    Drafts are removed. A folder that was set aside gets its name back if its replacement never arrived.
    """
    target = _behind_link(Path(path))
    neighbors = target.parent.glob(f".{glob.escape(target.name)}.{_RANDOM}{_ROOM}")
    for room in [*neighbors, *target.rglob(f".*.{_RANDOM}{_ROOM}")]:
        for aside in room.glob(f"*{_ASIDE}"):
            _put_back(aside, room.parent / aside.name.removesuffix(_ASIDE))
        shutil.rmtree(room, ignore_errors=True)


def _behind_link(path: Path) -> Path:
    """Where a link leads; other paths as they are."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


class Busy(InputError):
    """Another process holds the lock of the folder."""


@contextmanager
def locked(folder: Path, activity: str = "training") -> Iterator[None]:
    """Hold the lock of a folder, and remove what a killed process left there.

    Raises `Busy` if another process holds it (the message: "another process is ACTIVITY FOLDER"), and `InputError` if
    the folder cannot be written.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise Busy(f"another process is {activity} {folder}") from error
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
    try:
        sweep(folder)
        yield
    finally:
        lock.release()


def check_writable(folder: str | Path) -> None:
    """Raises `InputError` if nothing can be written to `folder`, which need not exist. Leaves nothing behind.

    For commands that work for a long time before they write.
    """
    target = Path(folder).absolute()
    existing = next(parent for parent in (target, *target.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error


def check_room(folder: str | Path, size: int) -> None:
    """Raises `InputError` if fewer than `size` bytes are free at `folder`, which need not exist."""
    target = Path(folder).absolute()
    free = shutil.disk_usage(next(parent for parent in (target, *target.parents) if parent.exists())).free
    if free < size:
        raise InputError(f"no room in {folder}: {size / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free")


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with writing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON atomically; NaN and infinities are refused, since JSON has no such numbers."""
    write_text(path, indented(value) + "\n")


def append_line(path: Path, value: Any) -> None:
    """Append a line of JSON, which is on the disk when this returns. A failed write raises `InputError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(value) + "\n")
            lines.flush()
            os.fsync(lines.fileno())
    except OSError as error:
        raise _not_written(path, _reason(error)) from error


def whole_lines(path: Path) -> list[Any]:
    """The lines of a file of JSON lines. What a kill cut short is removed, so that the file can be appended to."""
    if not path.exists():
        return []
    values, whole = [], 0
    with path.open("rb") as lines:
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            values.append(value)
            whole += len(line)
    if whole < path.stat().st_size:
        os.truncate(path, whole)
    return values


def indented(value: Any, margin: str = "\n") -> str:
    """The text of `json.dumps(value, indent=2, allow_nan=False)`, in a fraction of its time.

    Only containers of containers are walked here. The others, which have most of the numbers, go to the encoder written
    in C, with the line breaks as separators.
    """
    if not isinstance(value, dict | list | tuple) or not value:
        return json.dumps(value, allow_nan=False)
    deeper = margin + "  "
    if not any(
        isinstance(item, dict | list | tuple) for item in (value.values() if isinstance(value, dict) else value)
    ):
        flat = json.dumps(value, separators=("," + deeper, ": "), allow_nan=False)
        return flat[0] + deeper + flat[1:-1] + margin + flat[-1]
    if not isinstance(value, dict):
        return "[" + deeper + ("," + deeper).join(indented(item, deeper) for item in value) + margin + "]"
    pairs = (json.dumps({key: 0})[1:-2] + indented(item, deeper) for key, item in value.items())
    return "{" + deeper + ("," + deeper).join(pairs) + margin + "}"


def finite(value: Any) -> Any:
    """Plain data with None for NaN and infinities, which JSON does not have; names as text, tuples as lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def sha256(path: str | Path) -> str:
    """Hex digest of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_dir() -> Path:
    """The folder of caches: `$SINKSCOPE_CACHE`, else `~/.cache/sinkscope`.

    Raises `InputError` if the user has no home, for example under a numeric user id in a container.
    """
    if named := os.environ.get("SINKSCOPE_CACHE"):
        return Path(named)
    try:
        return Path.home() / ".cache" / "sinkscope"
    except RuntimeError as error:
        raise InputError("there is no home folder for caches: set SINKSCOPE_CACHE to a folder") from error


def cached_folder(folder: Path, build: Callable[[Path], None], *, reuse: bool = True, contents: bool = True) -> Path:
    """Return `folder`, filled by `build(draft)` unless it exists and is intact.

    One process builds; others wait and use the result. The folder gets its name when it is complete: an error or a kill
    in `build` leaves no entry. Intact means that every file has the size and sha256 of the manifest written with it;
    otherwise the folder is built again. `contents=False` compares only sizes, for files that take longer to hash than
    to read. Raises `InputError` if the cache must be written and cannot be.
    """
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        if reuse and is_intact(folder):  # a read-only cache of another user
            return folder
        reason = f"{error.strerror or error} (SINKSCOPE_CACHE sets another folder for caches)"
        raise InputError(f"cannot write {folder}: {reason}") from error
    try:
        if not (reuse and is_intact(folder)):
            sweep(folder)
            with writing(folder) as draft:
                draft.mkdir()
                build(draft)
                write_json(draft / MANIFEST, manifest_of(draft, contents))
    finally:
        lock.release()
    return folder


def is_intact(folder: Path, name: str = MANIFEST) -> bool:
    """Whether the files of the manifest called `name` are as it says; sizes are compared before anything is read."""
    try:
        manifest = json.loads((folder / name).read_text(encoding="utf-8"))
        files = [(folder / name, entry) for name, entry in manifest.items()]
        right_sizes = all(path.stat().st_size == entry["bytes"] for path, entry in files)
        hashed = [(path, entry["sha256"]) for path, entry in files if "sha256" in entry]
        return bool(files) and right_sizes and all(sha256(path) == digest for path, digest in hashed)
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return False


def manifest_of(folder: Path, contents: bool = True) -> dict[str, dict[str, int | str]]:
    """The size of each file below `folder`, and with `contents` its sha256: what `is_intact` compares."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            **({"sha256": sha256(path)} if contents else {}),
        }
        for path in files
    }


def _rename(draft: Path, target: Path, aside: Path) -> None:
    """Give the draft its name. A rename cannot replace a folder that is not empty, so that one is set aside."""
    if not (draft.is_dir() and target.is_dir()):
        os.replace(draft, target)
        return
    try:
        os.replace(target, aside)
        os.replace(draft, target)
    except BaseException:
        _put_back(aside, target)
        raise


def _put_back(aside: Path, target: Path) -> None:
    if aside.exists() and not target.exists():
        os.replace(aside, target)


def _failed_write(error: Exception, room: Path, target: Path) -> bool:
    """Whether an error comes from this write, not from other code in the block."""
    if isinstance(error, _NotWritten):
        culprit = error.path.absolute()
    elif not isinstance(error, OSError):
        return _disk_full(error)
    elif error.filename is None:
        return True
    else:
        culprit = Path(os.fsdecode(error.filename)).absolute()
    return any(culprit.is_relative_to(place.absolute()) for place in (room, target))


def _disk_full(error: Exception) -> bool:
    """Also if a library has its own exception for it, as safetensors and tokenizers do."""
    return os.strerror(errno.ENOSPC) in str(error)


def _reason(error: Exception) -> str:
    if isinstance(error, _NotWritten):
        return error.reason
    if _disk_full(error):
        return os.strerror(errno.ENOSPC)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.splitlines()[0] if text else type(error).__name__


def _flush(path: Path) -> None:
    """Push a file, or every file of a folder, to the disk before it gets its name."""
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        _sync(entry)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # YAML 1.1, which PyYAML reads, takes 1e-3 for text


def read_fields(path: Path, kind: str) -> dict[str, Any]:
    """The fields of a YAML (or JSON) file that holds a `kind`, such as a recipe; read safely, numbers as numbers.

    Raises `InputError` for a file that cannot be read, is not YAML, or holds no fields.
    """
    try:
        fields = parse_fields(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {kind} {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{kind} {path} is not text") from error
    except yaml.YAMLError as error:
        raise InputError(f"{kind} {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(fields, dict):
        raise InputError(f"{kind} {path} holds {type(fields).__name__}, expected fields and values")
    return {str(name): value for name, value in fields.items()}


def parse_fields(text: str) -> Any:
    """YAML, read safely, with numbers such as 1e-3 as numbers."""
    return _numbers(yaml.safe_load(text))


def _numbers(value: Any) -> Any:
    """The value with numbers such as 1e-3 as numbers, also inside lists and parts."""
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value
