from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sinkscope_replication.tasks.backcopy import Backcopy
from sinkscope_replication.tasks.backcopy_law import Law, Sequences, law_of

TINY = {
    "steps": 6,
    "batch_size": 4,
    "context": 12,
    "eval_every": 2,
    "save_every": 2,
    "log_every": 1,
    "validation_windows": 8,
    "model.hidden_size": 16,
    "model.intermediate_size": 32,
}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a corpus of two documents. The five most frequent characters: a, b, c, d, e."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "1.txt").write_text("aaaabbbacbcadaebcd" * 3)
    (folder / "2.txt").write_text("eabacadabx")
    return f"text:{folder}/*.txt"


@pytest.fixture(scope="session")
def small(text: str) -> Law:
    """Five characters, one trigger."""
    return law_of(text, characters=5, triggers=1)


@pytest.fixture(scope="session")
def law() -> Law:
    """The task's own."""
    return law_of()


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Backcopy]:
    """A job that trains in a moment, with fields changed."""
    return lambda **changes: Backcopy.at_scale("nano", TINY | changes)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def drawn(law: Law, count: int, length: int, seed: int = 0) -> Tensor:
    sequences = Sequences(law, count, length, "test", seed)
    return torch.stack([sequences[item]["input_ids"] for item in range(count)])
