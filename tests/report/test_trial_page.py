"""The page and the terminal's table of a trial say its numbers, and the same ones."""

from __future__ import annotations

import pytest

from sinkscope.report.page import render
from sinkscope.report.trial_page import rows, shown, trial_page
from sinkscope.trials import OnePass, Trial, run
from tests.trials.planted import beaten, ids, llama, noisy


@pytest.fixture(scope="module")
def trial() -> Trial:
    arms = [noisy("all", 0.5, baseline=True), beaten(0.2, 0.5)]
    return run(llama(), ids(8), arms, reading=OnePass(), controls=2, about={"kind": "planted <b>"})


def test_the_page_opens_with_the_gain_over_controls_and_escapes_names(trial: Trial) -> None:
    page = trial_page(trial)
    assert page.headlines[0].value == f"{-trial.difference('arm').value:+.3f}"
    assert page.headlines[0].label == "nats better than random: arm"
    html = render(page)
    assert "planted <b>" not in html
    assert "planted &lt;b&gt;" in html


def test_tables_hold_every_arm_and_the_terminal_no_controls(trial: Trial) -> None:
    assert shown(trial, full=True)["arm"].tolist() == trial.arms
    heads, cells = rows(trial)
    assert [row[0] for row in cells] == ["full", "all", "arm"]
    assert all(len(row) == len(heads) for row in cells)
    assert f"{trial.mean('arm').value:.3f}" in cells[2][1]
    assert cells[2][-1] == trial.word("arm")
