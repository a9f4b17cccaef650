"""A tiny model with its tokenizer, a text, and a recipe of seconds; the command line called in this process."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sinkscope.cli import main
from sinkscope.data.tokenizer import train_bpe, with_bos
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.report.page import Page

WORDS = ["def", "return", "attention", "sink", "token", "first", "value", "key", "self", "import"]


def prose(seed: int, words: int = 400) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words)) + "\n"


@dataclass(frozen=True)
class Answer:
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that bad input leaves on stderr."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code == 2, self.err
        assert len(lines) == 1
        assert self.err.splitlines()[-1] == lines[0]
        assert "Traceback" not in self.err
        return lines[0]


@pytest.fixture
def sinkscope(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """`sinkscope("measure", "nano")` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture
def pages() -> None:
    """For tests that read the page of a measurement."""


@pytest.fixture(autouse=True)
def no_pages_but_where_they_are_read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement's page takes half of its time, and is empty where nobody reads it (what tests share is whole)."""
    if "pages" not in request.fixturenames:
        empty = Page(title="not drawn", lead="")
        monkeypatch.setattr("sinkscope.report.observatory.observatory_page", lambda *given, **named: empty)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lab model of two layers and 32 positions, and its tokenizer, which puts a BOS first."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = with_bos(train_bpe([prose(0)], 300), add=True)
    config = LabConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LabForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(prose(1), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of a model with 8 dimensions."""
    folder = tmp_path_factory.mktemp("recipes")
    for index in range(8):
        (folder / f"{index}.txt").write_text(prose(index), encoding="utf-8")
    path = folder / "tiny.yaml"
    path.write_text(
        f"""
base: nano
steps: 4
batch_size: 2
context: 16
save_every: 2
eval_every: 2
log_every: 1
validation_windows: 2
model: {{num_hidden_layers: 1, num_attention_heads: 2, hidden_size: 8, intermediate_size: 16}}
data: {{corpus: "text:{folder}/*.txt", tokenizer: "bpe:300", validation_share: 0.3}}
"""
    )
    return path
