"""Streams of a trained model, with a planted sink and without, against the same texts read by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

import sinkscope as ss
from sinkscope.data import DataConfig
from sinkscope.model import LabConfig, LabForCausalLM, load_tokenizer
from sinkscope.trials import noise
from sinkscope_replication.observing.streamed import ROWS, long_texts, streamed

CONTEXT = 48


@pytest.fixture(scope="module")
def texts() -> torch.Tensor:
    ids = noise(8, 2 * CONTEXT, torch.Generator().manual_seed(2))
    ids[:, 0] = 0
    return ids


@pytest.mark.slow
def test_a_planted_sink_is_what_a_stream_needs(texts: torch.Tensor) -> None:
    found = dict(streamed(ss.load("nano-recall"), texts, CONTEXT))
    assert found["stream_loss/sinks=0"] > found["stream_loss/sinks=1"] + 0.05
    assert abs(found["stream_loss/sinks=4"] - found["stream_loss/sinks=1"]) < 0.05


@pytest.mark.slow
def test_it_is_the_loss_behind_the_context_read_token_by_token(texts: torch.Tensor) -> None:
    model: LlamaForCausalLM = ss.load("nano-recall")
    cache, lost = ss.StreamingCache(model, sinks=1, window=CONTEXT - 1), []
    with torch.no_grad():
        for place in range(texts.shape[1] - 1):
            logits = model(texts[:, place : place + 1], past_key_values=cache).logits[:, -1]
            lost.append(torch.nn.functional.cross_entropy(logits, texts[:, place + 1], reduction="none"))
    by_hand = torch.stack(lost, 1)[:, CONTEXT:].mean()
    assert dict(streamed(model, texts, CONTEXT))["stream_loss/sinks=1"] == pytest.approx(float(by_hand), rel=1e-5)


def test_models_that_cannot_stream_have_no_such_loss(texts: torch.Tensor) -> None:
    config = LabConfig(vocab_size=512, num_hidden_layers=1, position="learned", max_position_embeddings=2 * CONTEXT)
    assert dict(streamed(LabForCausalLM(config), texts % 512, CONTEXT)) == {}
    assert dict(streamed(ss.load("nano-recall"), None, CONTEXT)) == {}


@pytest.mark.slow
def test_long_texts_are_three_contexts_behind_a_bos() -> None:
    tokenizer = load_tokenizer("nano")
    texts = long_texts(tokenizer, DataConfig(), CONTEXT)
    assert texts is not None
    assert texts.shape == (ROWS, 3 * CONTEXT)
    assert (texts[:, 0] == tokenizer.bos_token_id).all()
    assert (texts[:, 1:] != tokenizer.bos_token_id).all()
    assert long_texts(tokenizer, DataConfig(), 10**6) is None
