from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sinkscope.training import Recipe, Run, load_recipe
from tests.training.helpers import trained

WORDS = ["the", "sink", "token", "first", "value", "key", "query", "head", "layer", "norm", "def", "return"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a corpus of 25 short files."""
    folder = tmp_path_factory.mktemp("corpus")
    for index in range(25):
        draw = random.Random(index)
        (folder / f"{index:02d}.txt").write_text(" ".join(draw.choice(WORDS) for _ in range(200)))
    return f"text:{folder}/*.txt"


@pytest.fixture(scope="session")
def tiny(corpus: str) -> Callable[..., Recipe]:
    """A recipe that trains in a fraction of a second; changes are overrides."""

    def recipe(*changes: str) -> Recipe:
        return load_recipe("nano", [*TINY, f"data.corpus={corpus}", *changes])

    return recipe


TINY = (
    "name=tiny",
    "steps=12",
    "batch_size=4",
    "context=16",
    "save_every=5",
    "eval_every=4",
    "log_every=2",
    "validation_windows=8",
    "model.hidden_size=16",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "model.intermediate_size=24",
    "schedule.warmup=2",
    "data.tokenizer=bpe:300",
    "data.validation_share=0.2",
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def undisturbed(tiny: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing happened to. Shared: leave it as it is."""
    return trained(tiny(), tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def finished(undisturbed: Run, runs: Path) -> Run:
    """A copy of it."""
    return Run(Path(shutil.copytree(undisturbed.path, runs / undisturbed.path.name)))
