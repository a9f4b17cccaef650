"""What trials refuse in one line, and what they say where a score is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaForSequenceClassification, LlamaModel

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.sinks import Outliers
from sinkscope.trials import CALIBRATIONS, OnePass, choose_heads, eviction_trial, feeding, run, scheme_trial, unchanged
from sinkscope.trials.chunks import chunk_arms
from tests.families.registry import FAMILIES
from tests.trials.planted import ids, llama, noisy


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: run(llama(), ids(), [noisy("a", 0.1)], reading=OnePass(), batch_size=0), "batch_size = 0: at least 1"),
        (lambda: eviction_trial(llama(), ids(12), budgets=[float("nan")]), "budget nan: a number of keys"),
        (lambda: chunk_arms([8, 8, 1], (1,)), "at least 2 tokens in each chunk after the first"),
        (lambda: ss.check("nano", tokens=2), "at least 4 tokens of a text"),
        (lambda: ss.check("nano", count=-1), "and 2 texts"),
        (
            lambda: choose_heads(llama(), ids(), CALIBRATIONS["zero-tuning"].options((0.5,), 50)),
            "position 50 is in no row: rows have positions 0 to 11",
        ),
    ],
)
def test_what_cannot_be_run_is_one_line(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: LlamaModel(llama().config), "family 'llama': it has no logits for each of its tokens"),
        (lambda: LlamaForSequenceClassification(llama().config), "it has no logits for each of its tokens"),
        (lambda: FAMILIES["minimax"].build(), "family 'minimax' brings a cache of its own"),
    ],
)
def test_a_model_that_cannot_be_read_through_a_cache_is_one_line(build: Callable[[], Any], said: str) -> None:
    model = build()
    with pytest.raises(InputError, match=said), feeding(model, unchanged(), ids()) as feed:
        feed.read(ids())


def test_a_head_named_twice_is_tried_once() -> None:
    found = [
        choose_heads(llama(), ids(), CALIBRATIONS["zero-tuning"].options((0.5,), 0), heads=heads)
        for heads in ([(0, 0)], [(0, 0), (0, 0)])
    ]
    assert found[0].gains == found[1].gains


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (("nats",), "changes the loss by"),
        (("agreement",), "finds the same token most likely at"),
        (("nats", "agreement"), "finds the same token most likely at"),
    ],
)
def test_a_trial_without_kl_says_what_it_has(score: tuple[str, ...], said: str) -> None:
    trial = run(llama(), ids(), [noisy("a", 0.5)], reading=OnePass(), score=score)
    assert trial.texts == 5
    assert said in trial.verdict
    assert "writes" not in trial.verdict


def test_ranges_are_fitted_with_all_tokens_where_none_of_their_texts_is_chosen() -> None:
    """Only a scored text has an outlier."""
    model, texts = llama(), ids(8, 12).clamp(max=48)
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        table[:, 3] = model.model.layers[0].self_attn.o_proj.weight[3] = 0
        table[49] = 0
        table[49, 3] = 400
        block = model.model.layers[0].mlp
        block.gate_proj.weight[0, 3] = block.up_proj.weight[0, 3] = 10
    texts[6, 5] = 49
    trial = scheme_trial(model, texts, "w8a8-static", {"outliers": Outliers()}, controls=0)
    assert "outliers" in trial.arms
