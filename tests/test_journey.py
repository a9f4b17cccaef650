"""A stranger's first ten minutes, with the wheel and the documentation alone: his model, his texts, his own package.

Code and commands are those of the pages: what is written here are his files and their names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.measurement import Measurement
from sinkscope.model import load_tokenizer
from tests.test_docs import BLOCK, ROOT
from tests.test_wheel import run, wheel  # noqa: F401  (a fixture)

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(sys.platform == "win32", reason="an environment with bin/"),
]

DOCS = ROOT / "docs"
PAGES = "\n".join(page.read_text() for page in (ROOT / "README.md", *DOCS.glob("*.md")))


@pytest.fixture(scope="module")
def places(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:  # noqa: F811
    """A fresh virtual environment with the wheel, as PATH; what it requires is read from this one."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "required.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-index")
    run(*pip, "--no-deps", wheel, cwd=folder.parent)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": "", "VENV": str(folder)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """His folder: two checkpoints of a model with its tokenizer, and texts in JSON lines."""
    tokenizer = load_tokenizer("nano")
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape))
    for step in (500, 1000):
        place = tmp_path / "my-llama" / f"checkpoint-{step}"
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.q_proj.weight *= 40
    rows = [{"id": i, "body": f"def add_{i}(a, b):\n    return a + b * {i}  # the sum, which is {i} times b more\n"}
            for i in range(12)]  # fmt: skip
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.fixture
def shell(home: Path, places: dict[str, str]) -> Callable[[str], str]:
    def call(line: str) -> str:
        assert_documented(line)
        return run(*shlex.split(line), cwd=home, **places)

    return call


def assert_documented(line: str) -> None:
    """The command and each of its options stand somewhere in README or docs."""
    words = shlex.split(line)
    command = " ".join(word for word in words[:3] if re.fullmatch("[a-z]+", word))
    assert command in PAGES, f"no page has '{command}'"
    missing = [word for word in words if word.startswith("--") and word not in PAGES]
    assert not missing, f"no page has {missing}"


def block_of(page: str, beginning: str) -> str:
    """The Python block of a page that has this line, up to where it uses what it made."""
    [code] = [code for kind, code in BLOCK.findall((DOCS / page).read_text()) if kind == "python" and beginning in code]
    lines = code.split("\n\n\n")
    return (
        "\n\n\n".join(part for part in lines if not re.search(r"^(m|spec|model|assert)\b", part, re.MULTILINE)) + "\n"
    )


def test_he_measures_his_model_on_his_texts_and_sees_the_page(home: Path, shell: Callable[[str], str]) -> None:
    few = "--tokens 24 --samples 6"
    said = shell(f"sinkscope measure my-llama/checkpoint-1000 --text mine.jsonl --field body {few} --out first")
    assert re.match(r"(Yes|No): ", said.splitlines()[0]) or "\nYes: " in said or "\nNo: " in said
    page = (home / "first" / "figure.html").read_text()
    assert '<div class="answer">' in page
    assert "my-llama/checkpoint-1000" in page
    measured = Measurement.load(home / "first" / "measurement.nc")
    assert measured.data.sizes["sample"] == 6
    assert "mine.jsonl" in measured.record["input"]["description"]


def test_he_compares_two_checkpoints(home: Path, shell: Callable[[str], str]) -> None:
    pair = "my-llama/checkpoint-500 my-llama/checkpoint-1000"
    shell(f"sinkscope measure {pair} --text mine.jsonl --field body --tokens 24 --samples 6 --out both")
    heads = pd.read_csv(home / "both" / "heads.csv")
    assert len(heads) == 2 * 4
    assert "checkpoint-500" in (home / "both" / "survey.html").read_text()


def test_he_adds_an_operation_and_an_observer_from_his_package(
    home: Path, shell: Callable[[str], str], places: dict[str, str]
) -> None:
    package = home / "sinkscope-toy" / "sinkscope_toy"
    package.mkdir(parents=True)
    [written] = [
        code
        for kind, code in BLOCK.findall((DOCS / "extending.md").read_text())
        if kind == "text" and "[project]" in code
    ]
    (package.parent / "pyproject.toml").write_text(written)
    (package / "__init__.py").touch()
    top = "import sinkscope as ss\n"
    pieces = "from sinkscope.attention import AttentionSpec, Causal, LogitSlot, Window\n"
    (package / "operations.py").write_text(top + pieces + block_of("extending.md", "def windowed_sink"))
    (package / "observers.py").write_text(top + block_of("extending.md", "class OwnShare"))
    pip = (sys.executable, "-m", "pip", "--python", f"{places['VENV']}/bin/python", "install", "--quiet", "--no-index")
    run(*pip, "--no-deps", "--no-build-isolation", package.parent, cwd=home)
    assert "windowed_sink" in shell("sinkscope zoo windowed_sink")
    few = "--tokens 24 --samples 4 --text mine.jsonl --field body"
    shell(f"sinkscope measure my-llama/checkpoint-500 {few} --observers few,OwnShare --out own")
    assert "own_share" in Measurement.load(home / "own" / "measurement.nc").data
    steps = "--set steps=2 --set batch_size=2 --set context=16 --set data.tokenizer=nano"
    assert "windowed_sink" in shell(f"sinkscope train nano --set attention=windowed_sink {steps} --plan --json")
