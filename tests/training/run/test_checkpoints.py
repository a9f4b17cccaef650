from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.model.checkpoints import list_checkpoints
from sinkscope.training.run.checkpoints import MANIFEST, newest_whole, problem, prune, require, seal


def checkpoint(folder: Path, step: int, sealed: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    (path / "deeper").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights" * step)
    (path / "deeper" / "state.json").write_text("{}")
    if sealed:
        seal(path)
    return path


def test_the_newest_whole_one_is_found_by_number(tmp_path: Path) -> None:
    for step in (90, 100, 20):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert newest_whole(tmp_path, pytest.fail) == tmp_path / "checkpoint-100"


def test_nothing_there(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "absent", pytest.fail) is None


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: (path / "model.safetensors").write_bytes(b"weight"), "damaged (model.safetensors not as"),
        (lambda path: (path / "deeper" / "state.json").unlink(), "damaged (deeper/state.json not as"),
        (lambda path: (path / "more.bin").write_bytes(b""), "damaged (more.bin not as"),
        (lambda path: (path / MANIFEST).write_text('{"files": '), "damaged (its manifest.json cannot be read"),
        (lambda path: (path / MANIFEST).write_text("[]"), "damaged (its manifest.json cannot be read"),
        (lambda path: (path / MANIFEST).unlink(), "incomplete (the process ended while writing it)"),
    ],
    ids=["truncated", "lost", "added", "torn manifest", "other manifest", "killed before the manifest"],
)
def test_a_harmed_one_is_set_aside_and_said(tmp_path: Path, harm, said: str) -> None:
    checkpoint(tmp_path, 10)
    harm(checkpoint(tmp_path, 20))
    announced: list[str] = []
    assert newest_whole(tmp_path, announced.append) == tmp_path / "checkpoint-10"
    assert len(announced) == 1
    assert f"checkpoint-20 is {said}" in announced[0]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-10"]
    assert (tmp_path / "damaged-checkpoint-20-1").is_dir()


def test_all_harmed(tmp_path: Path) -> None:
    for step in (10, 20):
        (checkpoint(tmp_path, step) / "model.safetensors").write_bytes(b"")
    announced: list[str] = []
    assert newest_whole(tmp_path, announced.append) is None
    assert len(announced) == 2


def test_setting_aside_twice_keeps_both(tmp_path: Path) -> None:
    for _ in range(2):
        checkpoint(tmp_path, 10, sealed=False)
        newest_whole(tmp_path, lambda note: None)
    assert {path.name for path in tmp_path.iterdir()} == {"damaged-checkpoint-10-1", "damaged-checkpoint-10-2"}


def test_the_oldest_go(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100):
        checkpoint(tmp_path, step)
    prune(tmp_path, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-15", "checkpoint-100"]


def test_the_manifest_lists_every_file(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 3)
    assert set(json.loads((path / MANIFEST).read_text())["files"]) == {"model.safetensors", "deeper/state.json"}
    assert problem(path) is None


@pytest.mark.parametrize(("optimizer", "was"), [("optimizer.pt", "ddp"), ("optimizer.bin", "fsdp")])
def test_a_sharded_run_stays_sharded(optimizer: str, was: str, tmp_path: Path) -> None:
    (tmp_path / optimizer).write_bytes(b"state")
    seal(tmp_path)
    require(tmp_path, sharded=was == "fsdp")
    with pytest.raises(InputError, match=f"continue with '{was}'"):
        require(tmp_path, sharded=was != "fsdp")
