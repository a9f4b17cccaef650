"""What can be decided by the seeds that are asked for."""

from __future__ import annotations

import pytest

from sinkscope.cli.experiment import seeds_needed
from sinkscope_replication.questions import QUESTIONS


@pytest.mark.parametrize("name", QUESTIONS)
def test_seeds_that_can_decide_nothing_are_named(name: str):
    question = QUESTIONS[name]
    counted = [each.first_seed("nano") + getattr(each.claim.rule, "seeds", 1) for each in question.assertions]
    if not counted:
        return
    assert ("can never decide" in seeds_needed(question, "nano", 2)) == (min(counted) > 2)
    assert f"--seeds {max(counted)} can decide {len(counted)} of {len(counted)}" in seeds_needed(question, "nano")


@pytest.mark.slow
def test_an_experiment_says_what_it_would_take(sinkscope, tmp_path):
    found = sinkscope("experiment", "run", "emergence", "--plan", "--seeds", 4, "--json").json
    assert (found["runs"], found["reused"]) == (4, 0)
    assert found["hours"] > 0
    assert found["disk_bytes"] > 4 * 4 * 1_000_000
    again = sinkscope(
        "experiment", "run", "emergence", "--plan", "--seeds", 4, "--reuse", "--workers", 2, "--json"
    ).json
    assert again["runs"] + again["reused"] == 4
    assert again["reused"] >= 3
    assert list(tmp_path.iterdir()) == []
