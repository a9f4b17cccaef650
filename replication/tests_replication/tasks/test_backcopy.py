"""The Bigram-Backcopy task as a job: its names, its training through interruptions, what is kept of it."""

from __future__ import annotations

import json
import math

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.experiments.jobs import as_json, job_from
from sinkscope.experiments.sweep.store import RunStore, known, observed
from sinkscope.experiments.sweep.worker import SETTLED, work
from sinkscope.training import Run
from sinkscope_replication.tasks.backcopy import Backcopy
from sinkscope_replication.tasks.backcopy_law import Sequences, tokenizer_of


def test_fields_of_task_and_recipe_are_changed_by_name():
    job = Backcopy.at_scale("nano", {"triggers": 2, "steps": 5, "optimizer.lr": 1.0, "attention": "relu", "seed": 4})
    assert (job.triggers, job.recipe.steps, job.recipe.optimizer.lr, job.seed) == (2, 5, 1.0, 4)
    assert job_from(as_json(job)) == job
    assert job.law.triggers == 2


@pytest.mark.parametrize("scale", Backcopy.sizes)
def test_scales(law, scale):
    recipe = Backcopy.at_scale(scale, {}).recipe
    config = recipe.lab_config(tokenizer_of(law))
    assert (config.position, config.norm, config.ffn, config.num_attention_heads) == ("learned", "layernorm", "relu", 1)
    assert config.intermediate_size == 4 * config.hidden_size
    assert recipe.optimizer.betas == (0.9, 0.99)
    assert recipe.optimizer.weight_decay == 1e-4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"trigers": 2}, "unknown recipe field 'trigers'"),
        ({"triggers": 0}, "bigram_backcopy field 'triggers'"),
        ({"characters": 5, "triggers": 4}, "leave at least 2"),
        ({"copying": 1.5}, "copying"),
        ({"optimizer.lrr": 1.0}, r"optimizer.adamw.lrr|optimizer.lrr"),
        ({"data.bos": "none"}, "leave out the recipe's field 'data'"),
        ({"source": "pithon"}, "did you mean"),
    ],
)
def test_bad_input(changes, complaint):
    with pytest.raises(InputError, match=complaint):
        Backcopy.at_scale("nano", changes).fingerprint()
    with pytest.raises(InputError, match="did you mean 'nano'"):
        Backcopy.at_scale("nanoo", {})


def test_a_start_that_would_be_drawn_over_is_refused(tiny, runs):
    with pytest.raises(InputError, match="start_from = 'nano': only the lab model"):
        tiny(start_from="nano").train(runs, "cpu")
    assert not runs.exists()


def test_laws_that_differ_make_other_runs(tiny, runs):
    store = RunStore(runs)
    jobs = [tiny(), tiny(triggers=2), tiny(copying=0.5), tiny(seed=1), tiny(attention="relu")]
    assert len({store.run(job).path.name for job in jobs}) == 5
    assert store.run(tiny(eval_every=3)).path == store.run(tiny()).path


@pytest.mark.slow
def test_a_job_is_done_observed_and_not_done_again(tiny, runs):
    store, job = RunStore(runs), tiny()
    run = store.run(job)
    assert not store.settled(job)
    assert work(job, runs, device="cpu") == SETTLED
    assert store.settled(job)
    found = observed(run, Backcopy)
    assert found.steps == (2, 4, 6)
    for name in ("loss", "train_loss", "excess_triggers", "bos_attention", "value_ratio", "excess_others/zero_head"):
        assert math.isfinite(found[name])
    curve = found.curves["task/bos_attention"]
    assert len(curve) == 3
    assert curve[-1] == pytest.approx(found["bos_attention"], abs=1e-5)
    assert found.curves["task/excess_triggers"][-1] == pytest.approx(found["excess_triggers"], abs=1e-5)
    before = (run.path / "record.json").read_bytes()
    assert work(job, runs, device="cpu") == SETTLED
    assert (run.path / "record.json").read_bytes() == before
    kept = run.path / "observed.json"
    older = json.loads(kept.read_text()) | {"layout": 1, "metrics": {}}
    for text in ("{", json.dumps(older)):
        kept.write_text(text)
        assert known(Run(run.path), Backcopy) is None
        assert observed(Run(run.path), Backcopy) == found
        assert known(Run(run.path), Backcopy) == found


@pytest.mark.slow
def test_embeddings_start_as_torch_starts_them(tiny, runs):
    run = tiny(**{"optimizer.lr": 1e-9}).train(runs, "cpu")
    weights = {name: weight.abs().detach() for name, weight in run.model.named_parameters()}
    for name in ("embed_tokens", "position.table"):
        assert float(weights[f"model.{name}.weight"].square().mean()) == pytest.approx(1, abs=0.2)
    largest = float(weights["model.layers.0.self_attn.q_proj.weight"].max())
    assert 0.9 * 16**-0.5 < largest <= 1.001 * 16**-0.5


@pytest.mark.slow
def test_an_interrupted_run_goes_on_as_if_undisturbed(tiny, runs, tmp_path, monkeypatch):
    job = tiny()
    whole = job.train(tmp_path / "whole", "cpu")
    draw, asked = Sequences.__getitem__, []

    def interrupted(self: Sequences, item: int):
        if self.part == "training":
            asked.append(item)
            if len(asked) == 18:  # behind the second step, wherever loading ahead leaves it
                raise KeyboardInterrupt
        return draw(self, item)

    monkeypatch.setattr(Sequences, "__getitem__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.train(runs, "cpu")
    run = job.train(runs, "cpu")
    assert any("resumed from checkpoint-" in note for note in run.record["notes"])
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, run.model.state_dict()[name])
    assert run.record["results"]["task/bos_attention"] == whole.record["results"]["task/bos_attention"]
