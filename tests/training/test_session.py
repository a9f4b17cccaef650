from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from filelock import FileLock
from safetensors.torch import load_file
from transformers import Trainer, set_seed

from sinkscope.data import TrainingOrder, prepare
from sinkscope.errors import InputError
from sinkscope.model import LabForCausalLM
from sinkscope.training import Recipe, Run, TrainingDiverged, checkpoints, load_recipe, train
from sinkscope.training.trainer import RecipeTrainer

Make = Callable[..., Recipe]
TIMES = {"seconds", "tokens_per_second"}


class Killed(BaseException):
    """What stands for the end of a process."""


def trained(recipe: Recipe, runs: Path, **options: object) -> Run:
    return train(recipe, runs, progress=False, device="cpu", **options)


def killed_at(step: int, recipe: Recipe, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose process ends in the middle of a step, before it could write anything more."""
    whole_step = RecipeTrainer.training_step

    def deadly(self: RecipeTrainer, *args: object, **kwargs: object) -> torch.Tensor:
        if self.state.global_step + 1 == step:
            raise Killed
        return whole_step(self, *args, **kwargs)

    with patched(monkeypatch, RecipeTrainer, "training_step", deadly), pytest.raises(Killed):
        trained(recipe, runs)
    (folder,) = runs.iterdir()
    record = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps(record | {"status": "running", "reason": None}))
    return folder


@contextmanager
def patched(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, value: object) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def weights(run: Run | Path) -> dict[str, torch.Tensor]:
    return load_file((run.path if isinstance(run, Run) else run) / "model" / "model.safetensors")


def rows(run: Run) -> list[dict[str, float]]:
    """The log without its times."""
    lines = (run.path / "log.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def assert_same_run(one: Run, other: Run) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert rows(one) == rows(other)


@pytest.fixture(scope="module")
def undisturbed(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing happened to. Shared: leave it as it is."""
    return trained(tiny(), tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def finished(undisturbed: Run, runs: Path) -> Run:
    """A copy of it."""
    return Run(Path(shutil.copytree(undisturbed.path, runs / undisturbed.path.name)))


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
            group["lr"] = recipe.schedule.rate(step, steps=recipe.steps, lr=recipe.optimizer.lr)
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


def test_resume_with_nothing_there_starts(undisturbed: Run, tiny: Make, runs: Path) -> None:
    assert_same_run(trained(tiny(), runs, resume=True), undisturbed)


@pytest.mark.parametrize("step", [3, 6, 7, 12])
def test_a_killed_run_ends_as_if_nothing_had_been(
    step: int, undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(step, tiny(), runs, monkeypatch)
    with pytest.raises(InputError, match="holds an unfinished run: pass --resume"):
        trained(tiny(), runs)
    run = trained(tiny(), runs, resume=True)
    assert_same_run(run, undisturbed)
    assert run.record["notes"] == ([f"resumed from checkpoint-{step - step % 5}"] if step > 5 else [])


def test_a_run_killed_before_its_model_was_saved(undisturbed: Run, finished: Run, tiny: Make, runs: Path) -> None:
    shutil.rmtree(finished.path / "model")
    (finished.path / "record.json").unlink()
    assert_same_run(trained(tiny(), runs, resume=True), undisturbed)


def test_a_truncated_checkpoint_is_passed_over(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = killed_at(12, tiny(), runs, monkeypatch)
    optimizer = folder / "checkpoints" / "checkpoint-10" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    run = trained(tiny(), runs, resume=True)
    assert_same_run(run, undisturbed)
    damage, resumed = run.record["notes"]
    assert damage.startswith("checkpoint-10 is damaged (optimizer.pt not as its manifest says): set aside")
    assert resumed == "resumed from checkpoint-5"
    assert damage in " ".join(capsys.readouterr().err.split())


def test_a_kill_between_a_checkpoint_and_its_manifest(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(*args: object) -> None:
        raise Killed

    with patched(monkeypatch, checkpoints, "write_json", deadly), pytest.raises(Killed):
        trained(tiny(), runs)
    run = trained(tiny(), runs, resume=True)
    assert_same_run(run, undisturbed)
    assert run.record["notes"][0].startswith("checkpoint-5 is incomplete")
    assert run.record["notes"][1] == "no whole checkpoint is left: started from the beginning"


def test_a_kill_right_after_a_checkpoint(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(*args: object) -> None:
        raise Killed

    with patched(monkeypatch, checkpoints, "prune", deadly), pytest.raises(Killed):
        trained(tiny(), runs)
    run = trained(tiny(), runs, resume=True)
    assert run.record["notes"] == ["resumed from checkpoint-5"]
    assert_same_run(run, undisturbed)


def test_a_torn_log_line_leaves_no_trace(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed_at(9, tiny(), runs, monkeypatch)
    with open(folder / "log.jsonl", "a") as stream:
        stream.write('{"step": 9, "lo')
    assert_same_run(trained(tiny(), runs, resume=True), undisturbed)


def test_other_frequencies_may_be_chosen_on_resume(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(7, tiny(), runs, monkeypatch)
    run = trained(tiny("save_every=3", "log_every=1"), runs, resume=True)
    assert list(run.log["step"])[-5:] == [8, 9, 10, 11, 12]
    assert {path.name for path in (run.path / "checkpoints").iterdir()} == {"checkpoint-9", "checkpoint-12"}
    assert all(torch.equal(value, weights(undisturbed)[name]) for name, value in weights(run).items())


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_divergence_stops_the_run(value: str, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.training_step

    def diverging(self: Trainer, *args: object, **kwargs: object) -> torch.Tensor:
        loss = step(self, *args, **kwargs)
        return loss * float(value) if self.state.global_step + 1 == 7 else loss

    monkeypatch.setattr(Trainer, "training_step", diverging)
    with pytest.raises(TrainingDiverged, match=f"the loss became {value} at step 7") as caught:
        trained(tiny(), runs)
    assert caught.value.step == 7
    (folder,) = runs.iterdir()
    record = Run(folder).record
    assert (record["status"], record["step"]) == ("diverged", 7)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-5"]
    assert not (folder / "model").exists()
    with pytest.raises(InputError, match="has no model: the run is diverged"):
        _ = Run(folder).model
    monkeypatch.undo()
    for resume in (False, True):
        with pytest.raises(TrainingDiverged, match=r"at step 7.*remove the folder to train it again") as caught:
            trained(tiny(), runs, resume=resume)
        assert caught.value.step == 7


def test_a_gradient_that_is_not_finite_is_noticed_before_it_is_saved(
    tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = RecipeTrainer.training_step

    def poisoned(self: RecipeTrainer, *args: object, **kwargs: object) -> torch.Tensor:
        loss = step(self, *args, **kwargs)
        if self.state.global_step + 1 == 5:
            next(self.model.parameters()).grad[0] = float("nan")
        return loss

    monkeypatch.setattr(RecipeTrainer, "training_step", poisoned)
    with pytest.raises(TrainingDiverged, match="the gradient's norm became nan at step 5"):
        trained(tiny(), runs)
    (folder,) = runs.iterdir()
    assert list((folder / "checkpoints").iterdir()) == []


def test_a_real_divergence(tiny: Make, runs: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"training diverged: the (loss|gradient's norm) became"):
        trained(tiny("optimizer.lr=1e30", "optimizer.clip=null", "steps=30"), runs)


def test_a_full_disk_leaves_the_checkpoint_before(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(value: object, place: str, *args: object, **kwargs: object) -> None:
        if "checkpoint-10" in str(place):
            raise OSError(28, "No space left on device")
        save(value, place, *args, **kwargs)

    with patched(monkeypatch, torch, "save", full), pytest.raises(InputError) as caught:
        trained(tiny(), runs)
    assert "cannot save" in str(caught.value)
    assert "No space left on device" in str(caught.value)
    assert str(caught.value).endswith("checkpoint-5 is whole")
    assert "\n" not in str(caught.value)
    (folder,) = runs.iterdir()
    assert Run(folder).record["status"] == "failed"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-5"]
    assert_same_run(trained(tiny(), runs, resume=True), undisturbed)


def test_one_process_per_run(tiny: Make, runs: Path) -> None:
    recipe = tiny()
    folder = runs / recipe.folder(prepare(recipe.data, recipe.context, recipe.seed).fingerprint)
    folder.mkdir(parents=True)
    with FileLock(folder / "run.lock"), pytest.raises(InputError, match="another process is training"):
        trained(recipe, runs, resume=True)


def test_another_configuration_in_the_folder(finished: Run, tiny: Make, runs: Path) -> None:
    stored = json.loads((finished.path / "recipe.json").read_text())
    (finished.path / "recipe.json").write_text(json.dumps(stored | {"steps": 13}))
    (finished.path / "record.json").unlink()
    with pytest.raises(InputError, match="holds a run of another configuration"):
        trained(tiny(), runs, resume=True)


@pytest.mark.parametrize("name", ["recipe.json", "record.json"])
def test_a_damaged_folder_is_said_in_one_line(name: str, finished: Run, tiny: Make, runs: Path) -> None:
    (finished.path / "record.json").unlink()
    (finished.path / name).write_text('{"steps": ')
    with pytest.raises(InputError, match=rf"cannot read .*{name}.*remove the folder"):
        trained(tiny(), runs, resume=True)


def test_a_run_is_no_parent_of_runs(finished: Run, tiny: Make) -> None:
    with pytest.raises(InputError, match="is the folder of a run: expected the parent folder"):
        trained(tiny(), finished.path)


def test_an_unknown_device(tiny: Make, runs: Path) -> None:
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        train(tiny(), runs, device="gpu")


def test_a_launcher_of_several_processes_is_refused(tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="several processes is not supported"):
        trained(tiny(), runs)


def test_an_output_folder_that_cannot_be_written(tiny: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write"):
        trained(tiny(), tmp_path / "file" / "runs")


def test_a_text_shorter_than_the_window_leaves_nothing_behind(tiny: Make, runs: Path) -> None:
    with pytest.raises(InputError, match="fewer than"):
        trained(tiny("context=100000"), runs)
    assert not runs.exists()


def test_bf16_is_another_run(undisturbed: Run, tiny: Make, runs: Path) -> None:
    run = trained(tiny("precision=bf16"), runs)
    assert run.path.name != undisturbed.path.name
    assert all(value.dtype == torch.float32 for value in weights(run).values())
    assert any(not torch.equal(value, weights(undisturbed)[name]) for name, value in weights(run).items())


def test_a_run_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run"):
        _ = Run(tmp_path).record


@pytest.mark.slow
def test_a_limit_on_file_size_stops_a_real_save(corpus: str, runs: Path) -> None:
    """The operating system itself refuses to write, inside safetensors' and torch's own code."""
    program = f"""
import resource, signal, sys
from sinkscope.errors import InputError
from sinkscope.training import load_recipe, train
from tests.training.conftest import TINY
recipe = load_recipe("nano", [*TINY, "data.corpus={corpus}", "model.hidden_size=128"])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
try:
    train(recipe, "{runs}", progress=False, device="cpu")
except InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot save")
    assert "there is none before it" in done.stdout
    assert done.stdout.count("\n") == 1
