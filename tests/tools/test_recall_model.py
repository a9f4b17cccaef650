"""The recipe of `nano-recall`: what it reads, what its hints ask for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from sinkscope.model import load
from tools.recall_model import Asking, RecallRecipe, Segments, hints, train_recall, without_rest

SHORT = {"shortest": 20, "longest": 26, "length": 60, "pairs": 4}
PHASES = (Segments(2, 2, 12, 3, 5, hint=True), Asking(2, 2, **SHORT, hint=True), Asking(2, 2, **SHORT))
SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY = RecallRecipe(phases=PHASES, model=SIZES)


def test_segments_repeat_from_their_period_on() -> None:
    rows = Segments(1, 50, length=40, shortest=5, longest=9).draw(TINY.alphabet, torch.Generator().manual_seed(0)).ids
    assert rows.shape == (50, 41)
    assert (rows[:, 0] == 0).all()
    periods = [next(p for p in range(5, 10) if torch.equal(row[1:-p], row[1 + p :])) for row in rows]
    assert set(periods) == {5, 6, 7, 8, 9}


def test_questions_ask_for_needles_of_the_text_with_replacement() -> None:
    generator, starts = torch.Generator().manual_seed(0), set()
    for _ in range(20):
        batch = Asking(1, 10, **SHORT).draw(TINY.alphabet, generator)
        assert batch.ids.shape == (10, 60)
        start, end = batch.asks.start, batch.asks.stop
        starts.add(start)
        assert (batch.rests.start, batch.rests.stop) == (1, start)
        for row in batch.ids.tolist():
            pairs = list(zip(row[start:end:2], row[start + 1 : end : 2], strict=True))
            assert len(pairs) == 12
            assert set(pairs) <= set(pairwise(row[:start]))
            assert len(set(pairs)) <= 3
            assert min(row[end:]) >= TINY.alphabet.noise[0]
    assert min(starts) >= 20
    assert max(starts) <= 26
    assert len(starts) > 3


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


def test_the_sinks_hint_can_be_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = without_rest(TINY).phases[1].draw(TINY.alphabet, generator)
    assert torch.arange(60)[batch.rests].numel() == 0
    assert without_rest(TINY).name == "nano-recall-no-rest"


@pytest.mark.slow
def test_training_is_the_same_again_and_leaves_a_model_that_loads(tmp_path: Path) -> None:
    folders = [train_recall(tmp_path / name, TINY) for name in ("one", "two")]
    weights = [load(folder).state_dict() for folder in folders]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert {path.name for path in folders[0].iterdir()} >= {"record.json", "log.jsonl", "tokenizer.json"}
