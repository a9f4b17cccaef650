"""Text files of the user's own: reading them, the corpus `text:GLOB`, and folders of domains."""

from __future__ import annotations

import csv
import glob
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from sinkscope.data.corpora.corpus import Corpus, CorpusEntry, read_bytes, read_text
from sinkscope.errors import InputError

FIELD = "text"
LINES = (".jsonl", ".ndjson")
TABLES = (*LINES, ".json", ".csv", ".tsv", ".parquet")
csv.field_size_limit(1 << 30)  # a document is longer than the 128 KiB that the module expects of a cell


def is_table(path: Path) -> bool:
    """Whether a file's rows are documents, by its ending; `.json` holds rows where it is a list, or a row a line."""
    if path.suffix.lower() == ".json":
        return _json_rows(path) is not None
    return path.suffix.lower() in TABLES


def row_texts(path: Path, field: str | None = None) -> Iterator[str]:
    """The text of every row, from the field `field` (`text` unless given), in order; rows without any are left out.

    Raises `InputError`, with file and row, for what cannot be read, a field that is not there (naming those that are)
    and a value that is no text, and where Parquet has no reader: it needs the extra `data`.
    """
    for number, row in enumerate(_rows(path), start=1):
        yield _text(path, number, row, field)


def row_entries(path: Path, name: str, field: str | None = None) -> Iterator[CorpusEntry]:
    """The rows as documents of a corpus, `name#000001`. Lines of JSON are read when their turn comes."""
    if path.suffix.lower() not in LINES:
        for number, text in enumerate(row_texts(path, field), start=1):
            yield CorpusEntry(f"{name}#{number:06d}", partial(str, text))
        return
    for number, (start, stop) in enumerate(_line_bounds(path), start=1):
        yield CorpusEntry(f"{name}#{number:06d}", partial(_line_text, path, start, stop, number, field))


def _rows(path: Path) -> Iterable[Any]:
    kind = path.suffix.lower()
    if kind in LINES:
        bounds = enumerate(_line_bounds(path), start=1)
        return (_parsed(path, number, read_text(path, *span)) for number, span in bounds)
    if kind == ".json":
        return _json_rows(path) or []
    if kind == ".parquet":
        return _parquet(path)
    return csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter="\t" if kind == ".tsv" else ",")


def _line_bounds(path: Path) -> Iterator[tuple[int, int]]:
    """Where each line that holds something begins and ends, in bytes."""
    start = 0
    try:
        with path.open("rb") as stream:
            for line in stream:
                if line.strip():
                    yield start, start + len(line)
                start += len(line)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _line_text(path: Path, start: int, stop: int, number: int, field: str | None) -> str:
    return _text(path, number, _parsed(path, number, read_text(path, start, stop)), field)


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InputError(
            f"{path}, row {number} is not JSON: expected an object such as {{'text': …}} a line"
        ) from error


def _json_rows(path: Path) -> list[Any] | None:
    """The objects of a JSON list, or of a file with one per line; None for any other JSON, which is read as text."""
    raw = read_bytes(path).decode("utf-8", "replace")
    try:
        whole = json.loads(raw)
    except ValueError:
        lines = [line for line in raw.split("\n") if line.strip()]  # strings may hold other line ends
        try:
            whole = [json.loads(line) for line in lines] if len(lines) > 1 else None
        except ValueError:
            return None
    rows = whole if isinstance(whole, list) else []
    return rows if rows and all(isinstance(row, dict) for row in rows) else None


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError(f"reading {path.name} needs the package datasets: pip install 'sinkscope[data]'") from error
    try:
        for batch in ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (OSError, ArrowException) as error:
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error


def _text(path: Path, number: int, row: Any, field: str | None) -> str:
    wanted = field or FIELD
    if not isinstance(row, Mapping):
        raise InputError(f"{path}, row {number} is not an object with a field '{wanted}'")
    if wanted not in row:
        there = ", ".join(str(name) for name in row) or "none"
        raise InputError(f"{path}, row {number} has no field '{wanted}': name another (fields: {there})")
    value = row[wanted]
    if not isinstance(value, str | None):
        raise InputError(f"{path}, row {number}: the field '{wanted}' holds {type(value).__name__}, not text")
    return value or ""


PIECE_BYTES = 1 << 14
NO_TABLE = f"a field ('{{field}}') goes with files of rows ({', '.join(TABLES)}): {{place}} is plain text"


def load_text(pattern: str, field: str | None = None) -> Corpus:
    """The files that match `pattern` (`**` descends into folders), one document each, sorted by name.

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


def _entries(path: Path, root: Path, table: bool, field: str | None) -> Iterator[CorpusEntry]:
    name = path.relative_to(root).as_posix()
    if table:
        yield from row_entries(path, name, field)
    else:
        yield CorpusEntry(name, partial(read_text, path))


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


def _pieces(path: Path) -> list[CorpusEntry]:
    """A file cut at the first line end after each `PIECE_BYTES`."""
    bounds = [0]
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            while bounds[-1] < size:
                stream.seek(bounds[-1] + PIECE_BYTES)
                # On to a line end, which cuts no character: in UTF-8 its byte is part of no other one.
                stream.readline()
                bounds.append(min(stream.tell(), size))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    return [
        CorpusEntry(f"{path.name}#{index:06d}", partial(read_text, path, start, stop))
        for index, (start, stop) in enumerate(pairwise(bounds))
    ]


def domains(folder: Path) -> dict[str, Path]:
    """Name and path of every domain in `folder`, in the order of their names; hidden entries are left out.

    Each file, and each folder of files, is one domain of text.

    Raises `InputError` for what is no folder, and for one without domains. Source: Gu et al. 2025, appendix.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder of domains: expected a folder with a file, or a folder, per domain")
    entries = {path.name: path for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    if not entries:
        raise InputError(f"the folder {folder} holds no domain: expected a file, or a folder, per domain")
    return entries


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
