"""Text files of the user's own: reading them, the corpus `text:GLOB`, and folders of domains."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from sinkscope.data.corpora.corpus import Corpus, Entry
from sinkscope.data.corpora.plain import read_text
from sinkscope.data.corpora.tables import TABLES, is_table, row_entries, row_texts
from sinkscope.errors import InputError

PIECE_BYTES = 1 << 14
NO_TABLE = f"a field ('{{field}}') goes with files of rows ({', '.join(TABLES)}): {{place}} is plain text"


def load_text(pattern: str, field: str | None = None) -> Corpus:
    """The files that match `pattern` (`**` descends into folders), a document each, sorted by name.

    Of JSON lines, CSV and Parquet every row is a document, its text the field `field` (`text` unless given). A file of
    text that stands alone is cut at line ends into documents of about 16 KiB: train and validation share no document,
    so one document would be no corpus. Raises `InputError` if nothing matches, and for a field that no file has;
    reading a document raises it if the file is not UTF-8 text.
    """
    root, files = files_of(pattern)
    tables = {path for path in files if is_table(path)}
    if field is not None and not tables:
        raise InputError(NO_TABLE.format(field=field, place=pattern))
    if len(files) == 1 and not tables:
        entries = _pieces(files[0])
    else:
        entries = [entry for path in files for entry in _entries(path, root, path in tables, field)]
    name = Path(pattern).expanduser().relative_to(root).as_posix()
    return Corpus(name=f"text:{name}", entries=tuple(sorted(entries, key=lambda entry: entry.name)))


def _entries(path: Path, root: Path, table: bool, field: str | None) -> Iterator[Entry]:
    name = path.relative_to(root).as_posix()
    if table:
        yield from row_entries(path, name, field)
    else:
        yield Entry(name, partial(read_text, path))


def files_of(pattern: str) -> tuple[Path, list[Path]]:
    """The files that match a pattern, and the folder above everything that can: names relative to it hold no absolute
    path. Raises `InputError` if none matches.
    """
    expanded = Path(pattern).expanduser()
    files = sorted(path for path in map(Path, glob.glob(str(expanded), recursive=True)) if path.is_file())
    if not files:
        raise InputError(f"no file matches '{pattern}'")
    root = expanded.parent
    while glob.has_magic(str(root)):
        root = root.parent
    return root, files


def _pieces(path: Path) -> list[Entry]:
    """A file cut at the first line end after each `PIECE_BYTES`."""
    bounds = [0]
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            while bounds[-1] < size:
                stream.seek(bounds[-1] + PIECE_BYTES)
                stream.readline()
                bounds.append(min(stream.tell(), size))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    return [
        Entry(f"{path.name}#{index:06d}", partial(read_text, path, start, stop))
        for index, (start, stop) in enumerate(pairwise(bounds))
    ]


def domains(folder: Path) -> dict[str, Path]:
    """Name and path of every domain in `folder`, in the order of their names; hidden entries are left out.

    Each file, and each folder of files, is one domain of text.

    Raises `InputError` for what is no folder, and for one without domains. Source: Gu et al. 2025, appendix.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of domains: expected a folder with a file, or a folder, per domain")
    found = {path.name: path for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    if not found:
        raise InputError(f"the folder {folder} holds no domain: expected a file, or a folder, per domain")
    return found


def texts(path: Path, field: str | None = None) -> Iterator[str]:
    """The documents of a domain: the text of a file, or of every file below a folder, in the order of their paths.

    Of JSON lines, CSV and Parquet every row is a document, its text the field `field` (`text` unless given).
    Raises `InputError` for what cannot be read, is not text, or holds nothing.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        if not files:
            raise InputError(f"the folder {path} holds no files")
    if field is not None and not any(map(is_table, files)):
        raise InputError(NO_TABLE.format(field=field, place=path))
    for file in files:
        if is_table(file):
            yield from (text for text in row_texts(file, field) if text)
        else:
            yield read_text(file)
