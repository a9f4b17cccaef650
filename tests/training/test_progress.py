from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from transformers.utils import logging

from sinkscope.training import Recipe, session, train
from sinkscope.training.session import summary, without_bars


def shown(recipe: Recipe, runs: Path, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    """What a training writes on a screen of 160 columns."""
    screen = io.StringIO()
    monkeypatch.setattr(session, "stderr", lambda: Console(file=screen, force_terminal=terminal, width=160))
    train(recipe, runs, device="cpu")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())


@pytest.mark.slow
def test_a_terminal_shows_one_bar(tiny: Callable[..., Recipe], runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = shown(tiny(), runs, monkeypatch, terminal=True).strip().splitlines()[-1]
    assert re.search(
        r"tiny-softmax .* 12/12 +loss \d\.\d\d val \d\.\d\d sink \d+\.\d% [\d,]+ tok/s \d:\d\d:\d\d$", last
    )


@pytest.mark.slow
def test_elsewhere_there_is_a_line_per_evaluation(
    tiny: Callable[..., Recipe], runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(tiny(), runs, monkeypatch, terminal=False).splitlines()
    assert [re.search(r"step (\d+)/12 loss .* val .* sink .* tok/s", line)[1] for line in lines] == [
        "4",
        "8",
        "12",
    ]


@pytest.mark.slow
def test_silence_when_asked_for(tiny: Callable[..., Recipe], runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tiny(), runs, device="cpu", progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_summary_leaves_out_what_is_unknown() -> None:
    assert summary({"step": 3, "loss": 2.0, "sink/position_0": None, "tokens_per_second": 12345.6}) == (
        "loss 2.00 12,346 tok/s"
    )


@pytest.mark.parametrize("before", [True, False])
def test_bars_come_back_if_there_were_some(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_tqdm_active", before)
    with without_bars():
        assert not logging.is_progress_bar_enabled()
    assert logging.is_progress_bar_enabled() is before
