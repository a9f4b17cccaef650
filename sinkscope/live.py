"""Progress while something runs: a view that is redrawn as it changes, or one line per event without a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from threading import Event, Thread
from typing import Generic, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

State = TypeVar("State")
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


def stderr() -> Console:
    """The console of remarks and progress, on stderr; stdout is for results."""
    return Console(stderr=True, highlight=False)


def plain(value: object) -> Text:
    """Text without markup and control characters, which the name of a model or a file may contain."""
    return Text(printable(value))


def printable(value: object) -> str:
    """A value's text; characters that do not print, except a new line, are replaced by a mark."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in text)


def bars(*columns: ProgressColumn, width: int | None = None) -> Progress:
    """Bars for a view: description, bar (`width` characters, or the free width), count and total, `columns`."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=width),
        MofNCompleteColumn(table_column=Column(min_width=9)),
        *columns,
        auto_refresh=False,
    )


@contextmanager
def pulse(say: Callable[[], str], show: Callable[[str], object], every: float = 10.0) -> Iterator[None]:
    """Show the line `say()` every `every` seconds while the block runs, as a sign of progress in a pipe."""
    ended = Event()

    def beat() -> None:
        while not ended.wait(every):
            show(say())

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def alive(activity: str) -> Iterator[None]:
    """Show that work without steps continues: a spinner on a terminal, one line every ten seconds in a pipe."""
    screen = stderr()
    with (
        screen.status(plain(activity))
        if screen.is_terminal
        else pulse(lambda: activity, lambda line: screen.print(plain(line), soft_wrap=True))
    ):
        yield


@contextmanager
def bar(words: str, total: float, every: float = 10.0) -> Iterator[Callable[[float], None]]:
    """Show how much of long work is done: a bar on a terminal, a line every ten seconds in a pipe; nothing if `silent`.

    Yields the function that adds an amount to what is done.
    """
    screen, began, done = stderr(), time.monotonic(), 0.0
    view = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=_SILENT.get() or not screen.is_terminal,
    )
    task = view.add_task(printable(words), total=total)

    def advance(amount: float) -> None:
        nonlocal done
        done += amount
        view.update(task, completed=done)

    in_pipe = not screen.is_terminal and not _SILENT.get()
    lines = pulse(
        lambda: f"{words}: {left(done, total, began)}", lambda line: screen.print(plain(line), soft_wrap=True), every
    )
    with view, lines if in_pipe else nullcontext():
        yield advance


@contextmanager
def silent(quiet: bool = True) -> Iterator[None]:
    """No bars inside the block."""
    token = _SILENT.set(quiet or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(token)


def left(done: float, total: float, began: float, before: float = 0) -> str:
    """The share that is done, and the time left at the pace since `began` (`time.monotonic`), from `before` on."""
    more = done - before
    rest = (time.monotonic() - began) * (total - done) / more if more else math.nan
    return f"{100 * done / max(total, 1):.0f} %" + ("" if math.isnan(rest) else f", about {duration(rest)} left")


def duration(seconds: float) -> str:
    """Seconds as text: `40 s`, `12 min`, `3 h 20 min`."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class LiveView(Generic[State]):
    """Shows each state that it is called with, inside its `with` block.

    Args:
        view: on a terminal, `view(state)` replaces the previous view.
        lines: without a terminal, `lines(state)` gives one line per event so far, with a key; each is printed once.
        screen: the console.
        every: the least seconds between two views; the last state is always shown.
        transient: remove the view at the end.
        status: without a terminal, `status(state)` is printed every ten seconds.
    """

    def __init__(
        self,
        view: Callable[[State], RenderableType],
        lines: Callable[[State], Iterable[tuple[Hashable, str]]],
        screen: Console,
        *,
        every: float = 0.0,
        transient: bool = False,
        status: Callable[[State], str] | None = None,
    ) -> None:
        self.view, self.lines, self.screen, self.every, self.status = view, lines, screen, every, status
        self.beating = ExitStack()
        self.live = Live(console=screen, transient=transient)
        self.printed: set[Hashable] = set()
        self.drawn = -math.inf
        self.seen = False

    def __call__(self, state: State) -> None:
        self.state = state
        self.seen = True
        if not self.screen.is_terminal:
            for key, line in self.lines(state):
                if key not in self.printed:
                    self.printed.add(key)
                    self._print(line)
        elif time.monotonic() - self.drawn >= self.every:
            self.drawn = time.monotonic()
            self.live.update(self.view(state))

    def __enter__(self) -> LiveView[State]:
        if self.screen.is_terminal:
            self.live.start()
        elif self.status is not None:
            self.beating.enter_context(pulse(self._status, self._print))
        return self

    def _status(self) -> str:
        return self.status(self.state) if self.seen and self.status is not None else "preparing"

    def _print(self, line: str) -> None:
        self.screen.print(plain(line), soft_wrap=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self.drawn > -math.inf:
                self.live.update(self.view(self.state))
        finally:
            self.beating.close()
            self.live.stop()
