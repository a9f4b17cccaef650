"""The terminal while something runs: a view that is drawn again as it changes, or a line per event on no terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

State = TypeVar("State")


def stderr() -> Console:
    """The console of remarks and progress; results on standard output stay clean."""
    return Console(stderr=True, highlight=False)


def plain(value: object) -> Text:
    """Text that is shown as it is: no markup, no control characters, which a model's or a file's name may hold."""
    return Text(printable(value))


def printable(value: object) -> str:
    """A value's text; what does not show, a new line aside, is replaced by a mark."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in text)


def bars(*columns: ProgressColumn, width: int | None = None) -> Progress:
    """Bars for a view: description, bar (of `width` characters, or all there is), how many of how many, `columns`."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=width),
        MofNCompleteColumn(table_column=Column(min_width=9)),
        *columns,
        auto_refresh=False,
    )


def now_and_then(show: Callable[[str], object], every: float = 10.0) -> Callable[[str], None]:
    """Show a line at most once in `every` seconds, the first after that time: life in a pipe, which has no bar."""
    last = time.monotonic()

    def tell(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            show(line)

    return tell


class Watch(Generic[State]):
    """Shows each state that it is called with, inside its `with` block.

    On a terminal `view(state)` stands in place of the one before; it is made at most once in `every` seconds, and of
    the last state in any case. Elsewhere `lines(state)` gives a line for every event so far, by a key that tells it
    from others, and each is printed once. A `transient` view vanishes at the end.
    """

    def __init__(
        self,
        view: Callable[[State], RenderableType],
        lines: Callable[[State], Iterable[tuple[Hashable, str]]],
        screen: Console,
        *,
        every: float = 0.0,
        transient: bool = False,
    ) -> None:
        self.view, self.lines, self.screen, self.every = view, lines, screen, every
        self.live = Live(console=screen, transient=transient)
        self.printed: set[Hashable] = set()
        self.drawn = -math.inf

    def __call__(self, state: State) -> None:
        self.state = state
        if not self.screen.is_terminal:
            for key, line in self.lines(state):
                if key not in self.printed:
                    self.printed.add(key)
                    self.screen.print(plain(line), soft_wrap=True)
        elif time.monotonic() - self.drawn >= self.every:
            self.drawn = time.monotonic()
            self.live.update(self.view(state))

    def __enter__(self) -> Watch[State]:
        if self.screen.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self.drawn > -math.inf:
                self.live.update(self.view(self.state))
        finally:
            self.live.stop()
