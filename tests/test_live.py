"""The terminal while something runs: views in place on a terminal, each line once elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from sinkscope.live import Watch, bars


def watch(terminal: bool, width: int = 80, **options: object) -> tuple[Watch[list[str]], io.StringIO]:
    """A watch over a list of events, and what comes to its screen."""
    stream = io.StringIO()
    screen = Console(file=stream, force_terminal=terminal, width=width, color_system=None)
    return Watch(lambda seen: Text(" ".join(seen)), enumerate, screen, **options), stream


def test_each_line_is_printed_once_as_it_is():
    show, stream = watch(terminal=False, width=10)
    with show:
        show(["[red]a is longer than the screen"])
        show(["[red]a is longer than the screen", "b"])
    assert stream.getvalue() == "[red]a is longer than the screen\nb\n"


def test_a_view_is_made_no_more_often_than_asked_and_of_the_last_state(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("sinkscope.live.time.monotonic", lambda: now[0])
    show, _ = watch(terminal=True, every=1.0)
    made: list[list[str]] = []
    view = show.view
    show.view = lambda seen: made.append(seen) or view(seen)
    with show:
        for after, seen in ((0.0, "a"), (0.5, "b"), (1.5, "c"), (1.6, "d")):
            now[0] = 100.0 + after
            show([seen])
    assert made == [["a"], ["c"], ["d"]]


def test_what_fails_inside_comes_out_and_leaves_the_terminal():
    show, stream = watch(terminal=True)
    show.view = {}.__getitem__
    with pytest.raises(KeyError), show:
        show("a")
    assert not show.live.is_started
    assert stream.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"


@pytest.mark.parametrize("width", [None, 30])
def test_bars_fit_a_narrow_terminal(width):
    found = bars(width=width)
    found.add_task("[red]models", total=12, completed=3)
    screen = Console(file=io.StringIO(), width=40, color_system=None)
    screen.print(found)
    [line] = screen.file.getvalue().splitlines()
    assert len(line) <= 40
    assert line.startswith("[red]mode")
