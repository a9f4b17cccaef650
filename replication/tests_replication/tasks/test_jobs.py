"""All kinds of jobs through one store, one worker and one sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import Question, Variation, above, level, run, verdicts
from sinkscope.experiments.jobs import TASKS, Job, as_json, job_from
from sinkscope.experiments.sweep.store import RunStore
from sinkscope.experiments.sweep.worker import FAILED, SETTLED, work
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.tasks.backcopy import Backcopy
from sinkscope_replication.tasks.backcopy_minimal import Minimal
from sinkscope_replication.tasks.conditional import TriggerConditional
from sinkscope_replication.training import StudyTraining
from tests.experiments.helpers import Here
from tests_replication.tasks.test_conditional import TINY

MADE = {
    "replication": StudyTraining.changed("nano", {}),
    "bigram_backcopy": Backcopy.at_scale("nano", {"triggers": 2}),
    "bigram_backcopy_minimal": Minimal.at_scale("nano", {"triggers": 2}),
    "trigger_conditional": TriggerConditional.at_scale("nano", TINY),
}


@pytest.mark.parametrize("kind", MADE)
def test_jobs_survive_json(kind):
    job = MADE[kind]
    assert isinstance(job, Job)
    assert type(job) is TASKS[kind]
    again = job_from(json.loads(json.dumps(as_json(job))))
    assert again == job
    assert again.folder({}) == job.folder({})


def test_kinds_do_not_share_folders():
    assert len({job.folder({}) for job in MADE.values()}) == len(MADE)


def test_an_unknown_task_is_named():
    with pytest.raises(InputError, match="did you mean 'bigram_backcopy'"):
        job_from({"kind": "bigram_backcop", "fields": {}})
    with pytest.raises(InputError, match="steps"):
        job_from({"kind": "trigger_conditional", "fields": {"steps": 0}})


def test_a_worker_is_told_the_kind_by_its_file(tmp_path, capsys):
    job, path = MADE["trigger_conditional"], tmp_path / "job.json"
    path.write_text(json.dumps(as_json(job)))
    assert work(job_from(json.loads(path.read_text())), tmp_path / "runs") == SETTLED
    store = RunStore(tmp_path / "runs")
    assert store.settled(job)


def test_a_job_that_cannot_be_done_says_why(tmp_path, capsys):
    job, path = MADE["trigger_conditional"], tmp_path / "job.json"
    path.write_text(json.dumps(as_json(job)))
    (tmp_path / "runs").write_text("a file where a folder should be")
    assert work(job_from(json.loads(path.read_text())), tmp_path / "runs") == FAILED
    assert "cannot write" in capsys.readouterr().err


def test_a_question_about_a_task_is_run_as_any_other(tmp_path):
    question = Question(
        name="of-a-task",
        asks="?",
        source="a test",
        variations=(Variation("softmax"), Variation("relu", {"attention": "relu"})),
        assertions=(above(-100.0, level("loss", "softmax"), "some", "there is some", "a test", fewest=2),),
        shared=TINY,
        base=TriggerConditional.at_scale,
        seeds=2,
    )
    places = {"out": tmp_path / "runs", "results": tmp_path / "results"}
    backend = Here()
    found = run(question, seeds=2, backend=backend, **places)
    assert len(backend.asked) == 4
    assert verdicts(question, found)[0].grade == "seen"
    assert run(question, seeds=2, backend=backend, **places).runs == found.runs
    assert len(backend.asked) == 4
    assert json.loads(Path(places["results"], "nano", "of-a-task.json").read_text())["runs"]["relu"]["1"]["metrics"]


@pytest.mark.parametrize("scale", ["nano", "mini", "paper"])
def test_the_synthetic_questions_have_jobs(scale):
    names = [name for name in QUESTIONS if name.startswith(("backcopy", "trigger"))]
    assert len(names) == 9
    for name in names:
        question = QUESTIONS[name]
        if scale in question.not_at:
            continue
        jobs = question.recipes(scale, [0, 1])
        assert len(jobs) == 2 * len(question.variations)
        assert len({job.folder({}) for job in jobs.values()}) == len(jobs)


def test_every_kind_of_job_is_asked_for_its_parameters_and_may_not_know():
    built = 1_300_000  # as the documentation says of nano
    assert MADE["replication"].parameters() == pytest.approx(built, rel=0.02)
    assert [MADE[kind].parameters() for kind in MADE if kind != "replication"] == [None, None, None]
