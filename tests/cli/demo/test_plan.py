from pathlib import Path

import pytest

from sinkscope.cli.demo.plan import full, quick
from sinkscope.training import load_recipe


def test_the_full_plan_compares_softmax_and_sigmoid_within_five_minutes():
    plan = full(Path("out"))
    assert plan.attentions == ("softmax", "sigmoid")
    assert plan.seconds < 300
    recipes = [load_recipe("nano", plan.overrides(attention)) for attention in plan.attentions]
    assert recipes[0].steps == recipes[1].steps
    differing = {key for key, value in recipes[0].decisive().items() if value != recipes[1].decisive()[key]}
    assert differing <= {"attention", "model"}


def test_the_quick_run_is_the_beginning_of_the_full_one():
    [attention] = quick(Path("out")).attentions
    short, whole = (load_recipe("nano", plan.overrides(attention)) for plan in (quick(Path("o")), full(Path("o"))))
    assert short.hash({}) == whole.hash({})


def test_the_quick_plan_leaves_time_for_the_report():
    assert quick(Path("out")).seconds < 75


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (6, 3), (64, 4)])
def test_the_cores_are_shared_out(monkeypatch, cores, threads):
    monkeypatch.setattr("sinkscope.cli.demo.plan.processors", lambda: cores)
    assert full(Path("out")).threads == threads
