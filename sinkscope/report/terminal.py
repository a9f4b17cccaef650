"""Results on a terminal: tables and sentences on stdout, remarks and progress on stderr, or JSON alone on stdout."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

LONGEST_WORD = 30  # characters; longer ones, such as paths, are broken where a terminal is narrow


def plain(value: object) -> Text:
    """Text that is shown as it is: no markup, no control characters, which a model's or a file's name may hold."""
    return Text("".join(character if character.isprintable() or character == "\n" else "�" for character in str(value)))


def show(*parts: RenderableType) -> None:
    """Print a result."""
    Console(highlight=False).print(*parts, soft_wrap=all(isinstance(part, Text | str) for part in parts))


def stderr() -> Console:
    """The console of remarks and progress."""
    return Console(stderr=True, highlight=False)


def note(message: str) -> None:
    """Print a remark for people, on stderr."""
    stderr().print(plain(message), style="dim", soft_wrap=True)


def fail(message: str) -> None:
    """Print what is wrong with the input as one line on stderr."""
    line = Text("error: ", style="bold red").append(plain(" ".join(message.split())))
    stderr().print(line, soft_wrap=True)


def show_json(value: Any) -> None:
    """Print one JSON value; NaN and infinities, which JSON does not have, become null."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def only_json(active: bool) -> Iterator[None]:
    """While active, whatever a library prints goes to stderr, so that stdout stays readable by machines."""
    if not active:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def flat(value: Any, prefix: str = "") -> list[tuple[str, object]]:
    """Nested data as dotted names and values: `{"a": {"b": 1}}` as `[("a.b", 1)]`, lists by their index."""
    if isinstance(value, Mapping) and value:
        return [pair for key, item in value.items() for pair in flat(item, f"{prefix}.{key}" if prefix else str(key))]
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return [pair for index, item in enumerate(value) for pair in flat(item, f"{prefix}[{index}]")]
    return [(prefix, value)]


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers_from: int = 1) -> Table:
    """A rich table with escaped cells; columns from `numbers_from` on are aligned right. Without names, no head.

    Columns of single words keep their width, so that a narrow terminal breaks lines between words.
    """
    result = Table(header_style="bold", box=None, padding=(0, 2, 0, 0), show_header=any(columns))
    cells = [[plain(cell) for cell in row] for row in rows]
    for index, column in enumerate(columns):
        whole = all(_is_word(row[index]) for row in cells if index < len(row))
        result.add_column(
            plain(column), justify="right" if index >= numbers_from else "left", overflow="fold", no_wrap=whole
        )
    for row in cells:
        result.add_row(*row)
    return result


def _is_word(cell: Text) -> bool:
    return len(cell) <= LONGEST_WORD and not any(character.isspace() for character in cell.plain)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
