from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.cli.demo.plan import DemoPlan
from tests.cli.conftest import prose


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of a model with 8 dimensions and 64 positions."""
    folder = tmp_path_factory.mktemp("recipes")
    for index in range(8):
        (folder / f"{index}.txt").write_text(prose(index), encoding="utf-8")
    path = folder / "tiny.yaml"
    path.write_text(
        f"""
base: nano
steps: 6
batch_size: 2
context: 64
log_every: 1
validation_windows: 2
model: {{num_hidden_layers: 1, num_attention_heads: 2, hidden_size: 8, intermediate_size: 16}}
data: {{corpus: "text:{folder}/*.txt", tokenizer: "bpe:300", validation_share: 0.3}}
"""
    )
    return path


@pytest.fixture
def plan(tmp_path: Path, recipe: Path) -> DemoPlan:
    return DemoPlan(
        tmp_path / "out",
        ("softmax", "sigmoid"),
        eval_every=2,
        save_every=3,
        seconds=600,
        recipe=str(recipe),
        changes=("steps=6",),
    )
