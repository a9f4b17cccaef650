from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from transformers import Trainer

from sinkscope.data import prepare
from sinkscope.errors import InputError
from sinkscope.training import Recipe, Run, TrainingDiverged, train
from sinkscope.training.trainer import RecipeTrainer
from tests.training.helpers import assert_same_run, patched, trained
from tests.victims import no_file_above

Make = Callable[..., Recipe]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_real_divergence(tiny: Make, runs: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"training diverged: the (loss|gradient's norm) became"):
        trained(tiny("optimizer.lr=1e30", "optimizer.clip=null", "steps=30"), runs)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("size", ["2", "two"])
def test_a_launcher_that_names_no_process(tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(InputError, match="WORLD_SIZE is set but not RANK: start the processes with torchrun"):
        trained(tiny(), runs)


def test_an_output_folder_that_cannot_be_written(tiny: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write"):
        trained(tiny(), tmp_path / "file" / "runs")


def test_a_text_shorter_than_the_window_leaves_nothing_behind(tiny: Make, runs: Path) -> None:
    with pytest.raises(InputError, match="fewer than"):
        trained(tiny("context=100000"), runs)
    assert not runs.exists()


def test_a_run_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run"):
        _ = Run(tmp_path).record


@pytest.mark.slow
def test_a_limit_on_file_size_stops_a_real_save(tiny: Make, runs: Path) -> None:
    """The operating system itself refuses to write, inside safetensors' and torch's own code."""
    with no_file_above(400_000), pytest.raises(InputError, match=r"^cannot save .*there is none before it$"):
        trained(tiny("model.hidden_size=128"), runs)
