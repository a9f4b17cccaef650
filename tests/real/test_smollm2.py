"""What is known of SmolLM2: its file's flags, its sink, and where the sink is made."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

import sinkscope as ss
from sinkscope.model import load, load_tokenizer

pytestmark = pytest.mark.slow
TEXT = (
    "The ferry left the harbor an hour late, because the captain had waited for a crate of lemons that nobody came to "
    "claim. By noon the wind had turned, and the passengers who had laughed at the delay were glad of the calmer water."
)
Model = tuple[Any, Any]


def test_flags_of_the_file_hold(smollm2: Model, smollm2_file: Path):
    """llama.cpp reads them as these keys; the tokenizer must do what they say."""
    model, tokenizer = smollm2
    fields = gguf.GGUFReader(smollm2_file).fields
    key = lambda name: fields[f"tokenizer.ggml.{name}"].contents()  # noqa: E731
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (key("bos_token_id"), key("eos_token_id")) == (1, 2)
    assert key("add_bos_token") is False
    assert tokenizer(TEXT).input_ids[0] != tokenizer.bos_token_id
    assert tokenizer.decode(tokenizer(TEXT).input_ids) == TEXT
    assert tokenizer.chat_template == fields["tokenizer.chat_template"].contents()
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert model.config.name_or_path == str(smollm2_file)


def test_it_writes_english(smollm2: Model):
    """Its loss on plain prose is far below ln 49152 = 10.8."""
    model, tokenizer = smollm2
    ids = torch.tensor([tokenizer(TEXT).input_ids])
    with torch.no_grad():
        output = model(ids, labels=ids)
    assert output.logits.isfinite().all()
    assert output.loss < 5


def test_the_first_token_is_the_sink(smollm2: Model):
    model, tokenizer = smollm2
    m = ss.measure(model, texts=[TEXT], tokenizer=tokenizer, tokens=48)
    assert m.sink_rate(position=0) > 60
    by_layer = m.layer_sink_rate().sel(position=0).values
    assert by_layer[12:29].mean() > 80
    assert by_layer[:2].mean() < 20  # nothing yet
    assert by_layer[10:12].mean() < 30  # it collapses, and is made anew by block 11
    norms = m.hidden_norm_ratio().values
    assert max(norms[:12]) < 20 < 100 < max(norms)


def test_the_second_load_is_fast(smollm2: Model, smollm2_file: Path, monkeypatch: pytest.MonkeyPatch):
    """Twenty seconds become one: the weights come from the cache. Generous, for machines that are busy."""
    del smollm2  # the first load
    monkeypatch.setenv("SINKSCOPE_CACHE", os.environ["SINKSCOPE_REAL"])
    start = time.perf_counter()
    load(smollm2_file)
    load_tokenizer(smollm2_file)
    assert time.perf_counter() - start < 10


def test_the_sink_collapses_and_reappears_in_words(smollm2: Model):
    """At layers 10 and 11, where the first token's state is as short as the others': written, not only drawn."""
    model, tokenizer = smollm2
    m = ss.measure(model, texts=[TEXT], tokenizer=tokenizer, tokens=48)
    [said] = [line for line in m.summary().lines() if "collapses" in line]
    assert "11: at most" in said
    assert "reappears" in said
    assert 0 in m.sinks().positions
