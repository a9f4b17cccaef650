"""Files whose rows are documents: JSON lines, CSV and Parquet, of which one field is the text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sinkscope.data.corpora.corpus import Entry
from sinkscope.data.corpora.plain import read_bytes, read_text
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


def row_entries(path: Path, name: str, field: str | None = None) -> Iterator[Entry]:
    """The rows as documents of a corpus, `name#000001`. Lines of JSON are read when their turn comes."""
    if path.suffix.lower() not in LINES:
        for number, text in enumerate(row_texts(path, field), start=1):
            yield Entry(f"{name}#{number:06d}", partial(str, text))
        return
    for number, (start, stop) in enumerate(_line_bounds(path), start=1):
        yield Entry(f"{name}#{number:06d}", partial(_line_text, path, start, stop, number, field))


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
    """The objects of a JSON list, or of a file with one a line; None for any other JSON, which is text as it stands."""
    raw = read_bytes(path).decode("utf-8", "replace")
    try:
        whole = json.loads(raw)
    except ValueError:
        lines = [line for line in raw.splitlines() if line.strip()]
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
        raise InputError(f"{path}, row {number} is no object with a field '{wanted}'")
    if wanted not in row:
        there = ", ".join(str(name) for name in row) or "none"
        raise InputError(f"{path}, row {number} has no field '{wanted}': choose one with --field (fields: {there})")
    value = row[wanted]
    if not isinstance(value, str | None):
        raise InputError(f"{path}, row {number}: the field '{wanted}' holds {type(value).__name__}, not text")
    return value or ""
