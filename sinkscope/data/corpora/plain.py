"""Reading a file as bytes and as text."""

from __future__ import annotations

from pathlib import Path

from sinkscope.errors import InputError


def read_bytes(path: Path, start: int = 0, stop: int | None = None) -> bytes:
    """The bytes [start, stop) of a file. `InputError` if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            return stream.read(-1 if stop is None else stop - start)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path, start: int = 0, stop: int | None = None) -> str:
    """The UTF-8 text of a file, or of its bytes [start, stop). `InputError` if it is not text.

    A NUL byte decodes, but no text holds one: UTF-16 and many binary files are recognized by it.
    """
    raw = read_bytes(path, start, stop)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: invalid UTF-8 at byte {start + error.start}") from error
    if "\0" in text:
        raise InputError(f"{path} is not text: NUL byte at {start + raw.index(0)}")
    return text
