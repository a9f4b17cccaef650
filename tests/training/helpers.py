"""Small runs, how they end, and how they are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sinkscope.training import Recipe, Run, train
from sinkscope.training.trainer import RecipeTrainer

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
