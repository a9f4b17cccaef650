"""The recipe of `nano-recall`: what it reads, what its hints ask for, and that an interrupted training goes on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from sinkscope.evaluate import Needles
from sinkscope.model import load
from tools.recall_model import Asking, RecallRecipe, Segments, hints, train_recall

SHORT = Needles(length=24, pairs=4, asked=3)
PHASES = (Segments(2, 2, 12, 3, 5, hint=True), Asking(2, 2, 4, SHORT, hint=True), Asking(2, 2, 4, SHORT))
SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY = RecallRecipe(phases=PHASES, model=SIZES)


def test_segments_repeat_from_their_period_on() -> None:
    rows = Segments(1, 50, length=40, shortest=5, longest=9).rows(TINY.alphabet, torch.Generator().manual_seed(0))
    assert rows.shape == (50, 41)
    assert (rows[:, 0] == 0).all()
    periods = [next(p for p in range(5, 10) if torch.equal(row[1:-p], row[1 + p :])) for row in rows]
    assert set(periods) == {5, 6, 7, 8, 9}


def test_questions_ask_for_needles_of_the_text_with_replacement() -> None:
    rows = Asking(1, 40, 12, SHORT).rows(TINY.alphabet, torch.Generator().manual_seed(0))
    assert rows.shape == (40, 24 + 24)
    for row in rows.tolist():
        pairs = list(zip(row[24::2], row[25::2], strict=True))
        stand = list(pairwise(row[:24]))
        assert set(pairs) <= set(stand)
        assert len(set(pairs)) < len(pairs)


def test_hints_are_nothing_for_attention_as_they_ask_for_it() -> None:
    ids = torch.tensor([[0, 5, 9, 6, 7, 5, 9]])
    first, second = torch.zeros(1, 2, 7, 7), torch.zeros(1, 2, 7, 7)
    first[0, 0].diagonal(-1).fill_(1.0)
    second[..., 0] = 1.0
    asks, rests = slice(5, 6), slice(1, 5)
    assert float(hints((first, second), ids, asks, rests)) > 10  # the query at 5 does not look up
    second[0, :, 5] = torch.tensor([0.0, 0, 1, 0, 0, 0, 0])  # what followed the 5 before
    assert float(hints((first, second), ids, asks, rests)) == pytest.approx(0, abs=1e-6)
    second[0, 1, 5] = torch.tensor([1.0, 0, 0, 0, 0, 0, 0])
    assert float(hints((first, second), ids, asks, rests)) == pytest.approx(0.6931, abs=1e-3)


@pytest.mark.slow
def test_training_is_the_same_again_and_leaves_a_model_that_loads(tmp_path: Path) -> None:
    folders = [train_recall(tmp_path / name, TINY) for name in ("one", "two")]
    weights = [load(folder).state_dict() for folder in folders]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert {path.name for path in folders[0].iterdir()} >= {"record.json", "log.jsonl", "tokenizer.json"}
