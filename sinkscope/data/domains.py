"""A folder of domains: each file, and each folder of files, is one domain of text [D4]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sinkscope.data.reading import read_text
from sinkscope.errors import InputError


def domains(folder: Path) -> dict[str, Path]:
    """Name and place of every domain in `folder`, in the order of their names; hidden entries are none.

    Raises `InputError` for what is no folder, and for one without domains.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of domains: expected a folder with a file, or a folder, per domain")
    found = {path.name: path for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    if not found:
        raise InputError(f"the folder {folder} holds no domain: expected a file, or a folder, per domain")
    return found


def texts(place: Path) -> Iterator[str]:
    """The documents of a domain: the text of a file, or of every file below a folder, in the order of their paths.

    Raises `InputError` for what cannot be read, is not text, or holds nothing.
    """
    if not place.is_dir():
        yield read_text(place)
        return
    files = sorted(path for path in place.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not files:
        raise InputError(f"the folder {place} holds no files")
    for path in files:
        yield read_text(path)
