"""Tasks of other packages: registered by name, made again by it in another process, run like any job."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.experiments import (
    FromRecipe,
    Question,
    RunStore,
    Task,
    Variation,
    above,
    level,
    recipe,
    run,
    task,
    times,
)
from sinkscope.experiments.jobs import TASKS, LabTraining, as_json, job_from, task_named
from sinkscope.experiments.sweep.worker import SETTLED, work
from tests.registering import forgetting, toy_installed

from .helpers import Here


@pytest.fixture
def toy():
    with toy_installed():
        yield


def test_a_worker_makes_a_job_again_by_the_name_of_its_task(toy, tmp_path):
    job = task("toy-counting")("nano", {"number": 5, "seed": 2})
    again = job_from(json.loads(json.dumps(as_json(job))))
    assert again == job
    assert type(again) is TASKS["toy-counting"]
    assert work(again, tmp_path) == SETTLED
    assert RunStore(tmp_path).settled(job)
    assert not RunStore(tmp_path).settled(task("toy-counting")("nano", {"number": 6}))
    recipe = LabTraining.changed("nano", {"seed": 3})
    assert job_from(json.loads(json.dumps(as_json(recipe)))) == recipe


def test_a_question_about_a_task_is_run_as_any_other(toy, tmp_path):
    asked = Question(
        name="of-a-task",
        asks="?",
        source="a test",
        variations=(Variation("three"), Variation("five", {"number": 5})),
        assertions=(above(0.0, level("count", "five"), "counts", "it counts", "a test", fewest=2),),
        seeds=2,
        base=task("toy-counting"),
    )
    places = {"out": tmp_path / "runs", "results": tmp_path / "results"}
    backend = Here()
    found = run(asked, seeds=2, backend=backend, **places)
    assert len(backend.asked) == 4
    assert {label: [each["count"] for each in seeds.values()] for label, seeds in found.runs.items()} == {
        "three": [3.0, 4.0],
        "five": [5.0, 6.0],
    }
    assert run(asked, seeds=(1, 2), backend=backend, **places).runs["five"].keys() == {0, 1, 2}
    assert len(backend.asked) == 6


def test_an_unknown_task_is_named(toy):
    with pytest.raises(InputError, match="did you mean 'toy-counting'"):
        task_named("toy-countin")
    with pytest.raises(InputError, match="number"):
        task("toy-counting")("nano", {"number": "x"})
    with pytest.raises(InputError, match="unknown scale 'paper'"):
        task("toy-counting")("paper", {})


def test_what_is_no_task_is_refused():
    class Nameless(Task):
        kind: ClassVar[None] = None

    class Recipe(Task):
        pass

    with forgetting():
        for wrong, words in ((3, "a subclass of"), (Nameless, "has no `kind`"), (Recipe, "'recipe' is the name of")):
            with pytest.raises(InputError, match=words):
                ss.task(wrong)


def test_a_change_may_be_a_multiple_of_the_recipe_s_own_value():
    own, twice = (recipe("nano", changes) for changes in ({}, {"optimizer.lr": times(2.0), "steps": times(0.5)}))
    assert (twice.optimizer.lr, twice.steps) == (2 * own.optimizer.lr, own.steps // 2)
    assert recipe("nano", {"optimizer.lr": times(1.0)}).hash({}) == own.hash({})
    assert FromRecipe("micro")("mini", {}).model_dump() == FromRecipe("micro")("nano", {}).model_dump()
    for field in ("optimizer.lrr", "data.corpus", "micro_batch", "model.rope_theta", "attention.alpha"):
        with pytest.raises(InputError, match=f"'{field}' = times 2.0: the recipe has no number there"):
            recipe("nano", {field: times(2.0)})
    with pytest.raises(InputError, match="unknown task 'nothing'"):
        FromRecipe(job="nothing")("nano", {})
