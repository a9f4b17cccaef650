from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from sinkscope.data.tokenizer import train_bpe

WORDS = ["the", "of", "attention", "sink", "token", "first", "value", "key", "head", "<eos>", "é", "—", "中文", "\t"]


def prose(seed: int, words: int) -> str:
    """Text that spells a special token, has letters of several bytes, and differs from seed to seed."""
    draw = random.Random(seed)
    return f"text {seed}\n" + " ".join(draw.choice(WORDS) for _ in range(words)) + "\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def notes(tmp_path: Path) -> str:
    """The name of a corpus of twelve files, one of them empty and two in a folder."""
    folder = tmp_path / "notes"
    (folder / "deeper").mkdir(parents=True)
    for index in range(11):
        place = folder / "deeper" if index >= 9 else folder
        (place / f"{index:02d}.txt").write_text(prose(index, 120 + 10 * index), encoding="utf-8")
    (folder / "empty.txt").write_text("")
    return f"text:{folder}/**/*.txt"


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe([prose(seed, 300) for seed in range(5)], 300)
