"""The terminal while something runs: views in place on a terminal, each line once elsewhere."""

from __future__ import annotations

import io
import time
from functools import partial

import pytest
from rich.console import Console
from rich.text import Text

from sinkscope import live
from sinkscope.live import LiveView, bar, bars, left, pulse, silent


def watch(terminal: bool, width: int = 80, **options: object) -> tuple[LiveView[list[str]], io.StringIO]:
    """A watch over a list of events, and what comes to its screen."""
    stream = io.StringIO()
    screen = Console(file=stream, force_terminal=terminal, width=width, color_system=None)
    return LiveView(lambda seen: Text(" ".join(seen)), enumerate, screen, **options), stream


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


def test_a_pulse_shows_a_line_while_nothing_else_happens():
    lines: list[str] = []
    with pulse(lambda: "at it", lines.append, every=0.01):
        time.sleep(0.2)
    many = len(lines)
    assert many >= 2
    assert set(lines) == {"at it"}
    time.sleep(0.05)
    assert len(lines) == many


def test_what_is_left_is_told_at_the_pace_so_far(monkeypatch):
    monkeypatch.setattr("sinkscope.live.time.monotonic", lambda: 120.0)
    assert left(1, 4, 100.0) == "25 %, about 60 s left"
    assert left(0, 4, 100.0) == "0 %"


def test_a_watch_in_a_pipe_tells_its_status_until_it_ends(monkeypatch):
    monkeypatch.setattr("sinkscope.live.pulse", partial(pulse, every=0.01))
    screen = Console(file=io.StringIO(), width=80)
    show = LiveView(lambda seen: seen, lambda seen: [], screen, status=lambda seen: f"at {seen}")
    with show:
        time.sleep(0.1)
        show("work")
        time.sleep(0.1)
    lines = screen.file.getvalue().splitlines()
    assert lines[0] == "preparing"
    assert lines[-1] == "at work"


@pytest.mark.parametrize("terminal", [True, False])
def test_long_work_shows_how_much_is_done(terminal, monkeypatch):
    stream = io.StringIO()
    screen = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    monkeypatch.setattr(live, "stderr", lambda: screen)
    with silent(), bar("encoding [x]", 4.0, every=0.01) as advance:
        advance(1.0)
        time.sleep(0.05)
    assert stream.getvalue() == ""
    with bar("encoding [x]", 4.0, every=0.01) as advance:
        advance(1.0)
        advance(2.0)
        time.sleep(0.3)
    assert "encoding [x]" in stream.getvalue()
    assert "75 %" in stream.getvalue()
