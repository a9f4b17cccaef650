"""The metric log: one JSON object a line, every line whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.files import write_text

LOG = "log.jsonl"


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line. Raises `InputError` where it cannot be written."""
    line = json.dumps(dict(row), allow_nan=False)
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log, none if there is no file; a last line that a killed process left unfinished is dropped.

    Raises `InputError` where another line is not a JSON object with a `step`.
    """
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError(f"{path}, line {number} is not an object with a step")
        rows.append(row)
    return rows


def cut(path: Path, step: int) -> list[dict[str, Any]]:
    """Cut a log back to the rows up to `step`, atomically, and return them."""
    rows = [row for row in read_rows(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def json_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with None for every number that is not finite: JSON has no such numbers."""
    return {name: None if _is_missing(value) else value for name, value in row.items()}


def _is_missing(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
