"""The trigger-conditional task: its data, a solution made by hand, and its runs."""

from __future__ import annotations

import json

import pytest
import torch
from filelock import FileLock

from sinkscope.errors import InputError
from sinkscope.experiments.sweep.store import observed
from sinkscope.training import Busy, Run, TrainingDiverged
from sinkscope_replication.tasks.conditional import Examples, OneLayer, TriggerConditional, model_metrics

TINY = {"content": 3, "head_dim": 4, "tokens": 8, "steps": 6, "batch_size": 8, "eval_every": 2}


def solved(attention: str) -> tuple[OneLayer, TriggerConditional]:
    """A layer that solves the task: queries that are no triggers look at the first token, which holds nothing."""
    job = TriggerConditional(attention=attention, content=3, head_dim=8, tokens=8)
    model = OneLayer(job)
    with torch.no_grad():
        for part in (model.query, model.key, model.value, model.read_out):
            part.weight.zero_()
        first, other, trigger = 3, 4, 5  # where the marks stand in an input
        model.query.weight[0, other] = 100 * 8**0.5
        model.key.weight[0, first] = 1.0
        model.value.weight[:3, :3] = model.read_out.weight[:3, :3] = torch.eye(3)
        if attention == "relu":  # equal scores of 1 at triggers, none elsewhere
            model.query.weight.zero_()
            model.key.weight.zero_()
            model.query.weight[1, trigger] = 8**0.5
            model.key.weight[1, [first, other, trigger]] = 1.0
    return model, job


@pytest.mark.parametrize("empty_first", [True, False])
def test_targets_are_means_of_what_came_before(empty_first):
    job = TriggerConditional(**TINY, empty_first=empty_first)
    examples = Examples(job, 50, "test")
    content, marks = examples.inputs[..., :3], examples.inputs[..., 3:]
    assert torch.equal(marks.sum(-1), torch.ones(50, 8))
    assert bool((content[:, 0] == 0).all()) == empty_first
    for n in range(50):
        for t in range(8):
            kind = int(marks[n, t].argmax())
            assert (kind == 0) == (t == 0)
            assert bool(examples.triggers[n, t]) == (kind == 2)
            assert bool(examples.others[n, t]) == (kind == 1 and t > 1)
            expected = sum(content[n, :t]) / t if kind == 2 else torch.zeros(3)
            torch.testing.assert_close(examples.targets[n, t], expected)
    assert not examples.triggers[:, :2].any()
    assert float(examples.triggers[:, 2:].float().mean()) == pytest.approx(0.25, abs=0.08)


def test_errors_are_shares_of_what_giving_nothing_costs():
    examples = Examples(TriggerConditional(**TINY), 50, "test")
    nothing = torch.zeros_like(examples.targets)
    assert [float(error) for error in examples.errors(nothing)] == pytest.approx([1.0, 0.0])
    assert [float(error) for error in examples.errors(examples.targets)] == [0.0, 0.0]
    moved = examples.targets + examples.others[..., None] * examples.power.sqrt()
    assert [float(error) for error in examples.errors(moved)] == pytest.approx([0.0, 1.0])


def test_draws_depend_on_what_they_are_drawn_by():
    job = TriggerConditional(**TINY)
    assert torch.equal(Examples(job, 5, "a", 1).inputs, Examples(job, 5, "a", 1).inputs)
    assert not torch.equal(Examples(job, 5, "a", 1).inputs, Examples(job, 5, "a", 2).inputs)


def test_softmax_solves_it_by_a_sink():
    model, job = solved("softmax")
    metrics = model_metrics(model, Examples(job, 50, "test"))
    assert metrics["loss"] < 1e-5
    assert metrics["first"] == metrics["first_share"] == pytest.approx(1.0)
    assert metrics["total"] == metrics["total/triggers"] == pytest.approx(1.0)
    assert metrics["slot"] == 0


def test_relu_solves_it_by_looking_nowhere():
    model, job = solved("relu")
    metrics = model_metrics(model, Examples(job, 50, "test"))
    assert metrics["loss"] < 1e-5
    assert metrics["first"] == metrics["first_share"] == metrics["total"] == metrics["output"] == 0
    assert metrics["total/triggers"] == pytest.approx(1.0)


def test_a_slot_counts_as_one():
    """With a score of 0 on all keys, softmax-off-by-one gives each of t keys and the slot 1 / (t + 1)."""
    model, job = solved("softmax_off_by_one")
    with torch.no_grad():
        model.query.weight.zero_()
    examples = Examples(job, 50, "test")
    metrics = model_metrics(model, examples)
    places = examples.others.nonzero()[:, 1].float()
    assert metrics["slot"] == metrics["first"] == pytest.approx(float((1 / (places + 1)).mean()))
    assert metrics["total"] + metrics["slot"] == pytest.approx(1.0)


def test_where_nothing_is_empty_a_sink_does_not_help():
    model, _ = solved("softmax")
    examples = Examples(TriggerConditional(content=3, head_dim=8, tokens=8, empty_first=False), 200, "test")
    assert model_metrics(model, examples)["output"] > 1


def test_a_query_does_not_see_its_own_token():
    model, job = solved("softmax")
    inputs = Examples(job, 2, "test").inputs.requires_grad_()
    model(inputs)[0][:, 5].sum().backward()
    assert not inputs.grad[:, 5:, :3].any()
    assert inputs.grad[:, 1:5, :3].any()


def test_a_run_is_made_once(runs):
    state = torch.get_rng_state()
    run = TriggerConditional(**TINY).train(runs)
    assert torch.equal(torch.get_rng_state(), state)
    record = run.record
    assert (record["status"], record["step"], record["seed"]) == ("finished", 6, 0)
    assert run.log["step"].tolist() == [0, 2, 4, 6]
    before = (run.path / "record.json").read_bytes()
    TriggerConditional(**TINY, seed=0, attention={"name": "softmax"}).train(runs)
    assert (run.path / "record.json").read_bytes() == before
    found = observed(run, TriggerConditional)
    assert found["loss"] == pytest.approx(found["unexplained"] + found["output"] ** 2)
    assert found.steps == (0, 2, 4, 6)
    assert found.curves["task/first"][-1] == found["first"]
    assert found["step"] != found["step"]  # no metric


def test_equal_jobs_give_equal_numbers_and_seeds_do_not(runs, tmp_path):
    results = [
        TriggerConditional(**TINY, seed=seed).train(place).record["results"]
        for seed, place in ((0, runs), (0, tmp_path / "again"), (1, runs))
    ]
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("attention", ["relu", "k_bias", "gated_head", "kernel_elu", "stable_mask"])
def test_any_operation_can_be_trained(runs, attention):
    run = TriggerConditional(**TINY, attention=attention).train(runs)
    assert attention in run.path.name
    assert run.record["status"] == "finished"


def test_divergence_is_a_result(runs):
    job = TriggerConditional(**TINY | {"lr": 1e30})
    with pytest.raises(TrainingDiverged, match="diverged"):
        job.train(runs)
    run = Run(next(runs.iterdir()))
    assert observed(run, TriggerConditional).diverged
    assert run.record["step"] > 0
    with pytest.raises(TrainingDiverged):
        job.train(runs)


def test_a_run_that_another_process_makes_is_left_alone(runs):
    job = TriggerConditional(**TINY)
    folder = runs / job.folder(job.fingerprint())
    folder.mkdir(parents=True)
    with FileLock(folder / "run.lock"), pytest.raises(Busy):
        job.train(runs)
    assert job.train(runs).path == folder


def test_how_often_it_is_read_names_no_other_run():
    names = {TriggerConditional(**TINY | {"eval_every": often}).folder({}) for often in (1, 2)}
    assert len(names) == 1
    assert TriggerConditional(**TINY, seed=1).folder({}) not in names
    assert json.loads(json.dumps(TriggerConditional(**TINY).model_dump(mode="json")))["task"] == "trigger_conditional"


def test_bad_input():
    with pytest.raises(InputError, match="did you mean 'sigmoid'"):
        TriggerConditional.at_scale("nano", {"attention": "sigmoyd"})
    with pytest.raises(InputError, match=r"unknown trigger_conditional field 'step': did you mean 'steps'"):
        TriggerConditional.at_scale("nano", {"step": 1})
    with pytest.raises(InputError, match="scale"):
        TriggerConditional.at_scale("mini", {})
