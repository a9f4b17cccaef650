"""The corpus `text:GLOB`: plain-text files of the user's own."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from sinkscope.data.corpus import Corpus, Entry
from sinkscope.data.reading import read_text
from sinkscope.errors import InputError

PIECE_BYTES = 1 << 14


def load_text(pattern: str) -> Corpus:
    """The files that match `pattern` (`**` descends into folders), a document each, sorted by name.

    A file that stands alone is cut at line ends into documents of about 16 KiB: train and validation share no
    document, so one document would be no corpus. Raises `InputError` if nothing matches; reading a document raises it
    if the file is not UTF-8 text.
    """
    root, files = files_of(pattern)
    entries = [Entry(path.relative_to(root).as_posix(), partial(read_text, path)) for path in files]
    if len(files) == 1:
        entries = list(_pieces(files[0]))
    name = Path(pattern).relative_to(_fixed_part(Path(pattern))).as_posix()
    return Corpus(name=f"text:{name}", entries=tuple(sorted(entries, key=lambda entry: entry.name)))


def files_of(pattern: str) -> tuple[Path, list[Path]]:
    """The folder above all that can match a pattern, and the files that do. Raises `InputError` if none does."""
    place = Path(pattern).expanduser()
    files = sorted(path for path in map(Path, glob.glob(str(place), recursive=True)) if path.is_file())
    if not files:
        raise InputError(f"no file matches '{pattern}'")
    return _fixed_part(place), files


def _fixed_part(pattern: Path) -> Path:
    """The folder above everything that can match; absolute paths stay out of names that way."""
    folder = pattern.parent
    while glob.has_magic(str(folder)):
        folder = folder.parent
    return folder


def _pieces(path: Path) -> Iterator[Entry]:
    try:
        with path.open("rb") as stream:
            bounds = list(_line_ends(stream))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    for index, (start, stop) in enumerate(pairwise(bounds)):
        yield Entry(f"{path.name}#{index:06d}", partial(read_text, path, start, stop))


def _line_ends(stream: BinaryIO) -> Iterator[int]:
    """0, then the first line end after each further `PIECE_BYTES`, and the end of the file last."""
    size = stream.seek(0, os.SEEK_END)
    end = 0
    yield end
    while end < size:
        stream.seek(end + PIECE_BYTES)
        stream.readline()
        end = min(stream.tell(), size)
        yield end
