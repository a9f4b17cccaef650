"""The committed table says what the jobs say, and equal identities are equal runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sinkscope.experiments import QUESTIONS
from sinkscope.experiments.identities import TABLE, identities, made
from tools.pages import identities as tool


@pytest.mark.slow
def test_the_table_is_up_to_date():
    assert TABLE.read_text(encoding="utf-8") == tool.page(), "run python -m tools.pages.identities"


def test_one_run_has_one_identity_and_its_seeds_share_it():
    softmax = identities(QUESTIONS["emergence"], "nano")["softmax"]
    assert identities(QUESTIONS["biases"], "nano")["softmax"] == softmax
    assert identities(QUESTIONS["learning-rate"], "nano")["lr"] == softmax
    assert identities(QUESTIONS["learning-rate"], "nano")["lr / 4"] != softmax


def test_other_text_is_another_run():
    mixtures = identities(QUESTIONS["mixture"], "nano")
    assert len({one.key for one in mixtures.values()}) == len(mixtures)


def test_a_user_s_question_under_a_known_name_is_not_taken_for_it(small):
    mine = small(name="emergence")
    assert identities(mine, "nano") == made(mine, "nano") != identities(QUESTIONS["emergence"], "nano")


@pytest.mark.slow
def test_what_is_known_is_read_without_torch():
    code = (
        "import sys; from sinkscope.cli import main; from sinkscope.experiments import SHIPPED, known, plan; "
        "assert plan(known([SHIPPED], 'nano')); assert main(['experiment', 'verdict', '--all']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
