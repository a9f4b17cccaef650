from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import set_seed

from sinkscope.data import TrainingOrder, prepare
from sinkscope.model import LabForCausalLM
from sinkscope.training import Recipe, Run, load_recipe
from sinkscope.training.trainer import RecipeTrainer
from tests.training.helpers import trained, weights
from tests.training.test_schedule import reference

Make = Callable[..., Recipe]


@pytest.mark.slow
def test_the_folder_of_a_run(undisturbed: Run, tiny: Make) -> None:
    assert undisturbed.path.name.startswith("tiny-softmax-")
    assert {path.name for path in undisturbed.path.iterdir()} == {
        "recipe.json", "record.json", "log.jsonl", "checkpoints", "model", "run.lock"
    }  # fmt: skip
    assert load_recipe(undisturbed.path / "recipe.json") == tiny()
    kept = {path.name for path in (undisturbed.path / "checkpoints").iterdir()}
    assert kept == {"checkpoint-10", "checkpoint-12"}
    for checkpoint in kept:
        assert "training_args.bin" not in os.listdir(undisturbed.path / "checkpoints" / checkpoint)


def test_the_record(undisturbed: Run, tiny: Make) -> None:
    record = undisturbed.record
    assert (record["status"], record["step"], record["seed"], record["notes"]) == ("finished", 12, 0, [])
    assert record["recipe"] == tiny().model_dump(mode="json")
    assert undisturbed.path.name.endswith(record["hash"])
    assert record["data"]["text_sha256"]
    assert {"torch", "transformers", "sinkscope", "python"} <= record["versions"].keys()
    assert record["host"]["device"] == "cpu"
    assert record["parameters"]["total"] == sum(value.numel() for value in undisturbed.model.parameters())
    assert record["results"]["validation_loss"] == undisturbed.log["validation_loss"].iloc[-1]
    assert str(undisturbed.path.parent) not in json.dumps(record)


def test_the_log(undisturbed: Run) -> None:
    log = undisturbed.log
    assert list(log["step"]) == [0, 2, 4, 5, 6, 8, 10, 12]
    assert list(log["step"][log["validation_loss"].notna()]) == [4, 8, 12]
    assert list(log["step"][log["sink/position_0"].notna()]) == [0, 4, 8, 12]
    assert log["seconds"].is_monotonic_increasing
    trained_rows = log[log["step"] > 0]
    for column in ("loss", "learning_rate", "grad_norm", "tokens_per_second"):
        assert trained_rows[column].notna().all()
    sinks = {"sink/position_0", "sink/strongest_position", "sink/strongest", "sink/hidden_norm_ratio"}
    assert sinks <= set(log.columns)


def test_the_model_and_its_tokenizer(undisturbed: Run) -> None:
    stored = weights(undisturbed)
    assert all(torch.equal(value, stored[name]) for name, value in undisturbed.model.state_dict().items())
    assert undisturbed.model.config.use_cache
    assert undisturbed.model.config.vocab_size == len(undisturbed.tokenizer)
    assert undisturbed.tokenizer("the sink")["input_ids"][0] == undisturbed.tokenizer.bos_token_id
    provenance = json.loads((undisturbed.path / "model" / "provenance.json").read_text())
    assert provenance["hash"] == undisturbed.record["hash"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [(), ("micro_batch=2",), ("optimizer.clip=null", "schedule.kind=cosine")])
def test_the_weights_are_those_of_a_plain_loop(changes: tuple[str, ...], tiny: Make, runs: Path) -> None:
    recipe = tiny(*changes)
    data = prepare(recipe.data, recipe.context, recipe.seed)
    set_seed(recipe.seed)
    model = LabForCausalLM(recipe.lab_config(data.tokenizer)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.1, betas=(0.9, 0.95))
    order = TrainingOrder(data.train, recipe.batch_size, recipe.steps, recipe.seed)
    for step in range(recipe.steps):
        items = range(step * recipe.batch_size, (step + 1) * recipe.batch_size)
        ids = torch.stack([order[item]["input_ids"] for item in items])
        logits = model(input_ids=ids).logits[:, :-1]
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        if recipe.optimizer.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.clip)
        for group in optimizer.param_groups:
            group["lr"] = reference(recipe.schedule, step, recipe.steps, recipe.optimizer.lr)
        optimizer.step()
        optimizer.zero_grad()
    run = trained(recipe, runs)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights(run)[name], value, atol=2e-5, rtol=1e-4)


def test_the_validation_loss_is_the_mean_over_its_windows(undisturbed: Run, tiny: Make) -> None:
    recipe = tiny()
    windows = prepare(recipe.data, recipe.context, recipe.seed).validation
    ids = torch.stack([windows[index * len(windows) // 8]["input_ids"] for index in range(8)])
    with torch.no_grad():
        loss = undisturbed.model(input_ids=ids, labels=ids).loss.item()
    assert undisturbed.record["results"]["validation_loss"] == pytest.approx(loss, rel=1e-5)


def test_a_finished_run_is_returned_as_it_is(finished: Run, tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecipeTrainer, "__init__", lambda *args, **kwargs: pytest.fail("trained again"))
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}
    for resume in (False, True):
        again = trained(tiny("save_every=7"), finished.path.parent, resume=resume)
        assert again.path == finished.path
    assert before == {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}


@pytest.mark.slow
def test_bf16_is_another_run(undisturbed: Run, tiny: Make, runs: Path) -> None:
    run = trained(tiny("precision=bf16"), runs)
    assert run.path.name != undisturbed.path.name
    assert all(value.dtype == torch.float32 for value in weights(run).values())
    assert any(not torch.equal(value, weights(undisturbed)[name]) for name, value in weights(run).items())


@pytest.mark.slow
def test_more_checkpoints_are_kept_when_asked_for_and_change_no_number(
    undisturbed: Run, tiny: Make, tmp_path: Path
) -> None:
    run = trained(tiny("keep=3"), tmp_path / "curve")
    assert run.path.name == undisturbed.path.name
    assert {path.name for path in (run.path / "checkpoints").iterdir()} == {
        "checkpoint-5",
        "checkpoint-10",
        "checkpoint-12",
    }
