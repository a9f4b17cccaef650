from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.training import Recipe, Run
from sinkscope.training.run import checkpoints
from tests.training.helpers import Killed, assert_same_run, killed_at, patched, trained, weights

Make = Callable[..., Recipe]


@pytest.mark.slow
def test_resume_with_nothing_there_starts(undisturbed: Run, tiny: Make, runs: Path) -> None:
    assert_same_run(trained(tiny(), runs, resume=True), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, *(pytest.param(step, marks=pytest.mark.release) for step in (6, 7, 12))])
def test_a_killed_run_ends_as_if_nothing_had_been(
    step: int, undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(step, tiny(), runs, monkeypatch)
    with pytest.raises(InputError, match="holds an unfinished run: pass --resume"):
        trained(tiny(), runs)
    run = trained(tiny(), runs, resume=True)
    assert_same_run(run, undisturbed)
    assert run.record["notes"] == ([f"resumed from checkpoint-{step - step % 5}"] if step > 5 else [])


@pytest.mark.slow
def test_a_run_killed_before_its_model_was_saved(undisturbed: Run, finished: Run, tiny: Make, runs: Path) -> None:
    shutil.rmtree(finished.path / "model")
    (finished.path / "record.json").unlink()
    assert_same_run(trained(tiny(), runs, resume=True), undisturbed)


@pytest.mark.slow
def test_a_truncated_checkpoint_is_passed_over(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = killed_at(12, tiny(), runs, monkeypatch)
    began = {**json.loads((folder / "record.json").read_text()), "started": "2026-01-02T03:04:05+00:00"}
    (folder / "record.json").write_text(json.dumps(began))
    optimizer = folder / "checkpoints" / "checkpoint-10" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    run = trained(tiny(), runs, resume=True)
    assert_same_run(run, undisturbed)
    damage, resumed = run.record["notes"]
    assert damage.startswith("checkpoint-10 is damaged (optimizer.pt not as its manifest says): set aside")
    assert resumed == "resumed from checkpoint-5"
    assert run.record["started"] == began["started"]
    assert damage in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_torn_log_line_leaves_no_trace(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed_at(9, tiny(), runs, monkeypatch)
    with open(folder / "log.jsonl", "a") as stream:
        stream.write('{"step": 9, "lo')
    assert_same_run(trained(tiny(), runs, resume=True), undisturbed)


@pytest.mark.slow
def test_other_frequencies_may_be_chosen_on_resume(
    undisturbed: Run, tiny: Make, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(7, tiny(), runs, monkeypatch)
    run = trained(tiny("save_every=3", "log_every=1"), runs, resume=True)
    assert list(run.log["step"])[-5:] == [8, 9, 10, 11, 12]
    assert {path.name for path in (run.path / "checkpoints").iterdir()} == {"checkpoint-9", "checkpoint-12"}
    assert all(torch.equal(value, weights(undisturbed)[name]) for name, value in weights(run).items())
