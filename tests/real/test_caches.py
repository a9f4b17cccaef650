"""Caches on a pretrained model: what streams, what a prompt leaves, what a share of the keys holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.caches import StreamingCache, evicting, held
from sinkscope.caches.policies import SnapKV
from sinkscope.caches.sizes import held_bytes

pytestmark = pytest.mark.slow
WRITE: dict[str, Any] = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "pad_token_id": 0}


def text(tokenizer: Any, tokens: int) -> Tensor:
    ids = tokenizer(Path(__file__).read_text(), return_tensors="pt").input_ids[:, : tokens - 1]
    return torch.cat([torch.tensor([[tokenizer.bos_token_id]]), ids], 1)


@pytest.mark.release
def test_a_prompt_is_read_strictly_and_comes_back_from_a_file(smollm2: tuple[Any, Any], tmp_path: Path) -> None:
    """A dense pass over the prompt changes most of what is written."""
    model, tokenizer = smollm2
    ids = text(tokenizer, 160)
    assert StreamingCache(model).length == model.config.max_position_embeddings == 8192
    cache, other = StreamingCache(model, 4, 44), StreamingCache(model, 4, 44)
    cache.prefill(model, ids)
    cache.save(tmp_path / "prompt.safetensors")
    other.load(tmp_path / "prompt.safetensors")
    written = model.generate(ids, past_key_values=StreamingCache(model, 4, 44), **WRITE)
    for each in (cache, other):
        assert torch.equal(model.generate(ids, past_key_values=each, **WRITE), written)
    one = model.generate(ids, past_key_values=StreamingCache(model, 4, 44), prefill_chunk_size=1, **WRITE)
    assert torch.equal(one, written)


def test_a_quarter_of_the_keys_holds_about_a_quarter_of_the_bytes(smollm2: tuple[Any, Any]) -> None:
    model, tokenizer = smollm2
    ids = text(tokenizer, 96)
    full = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=full, logits_to_keep=1)
    for policy in (SnapKV(6), "scissorhands", "expected"):
        with evicting(model, policy, 24) as cache, torch.no_grad():
            model(ids, past_key_values=cache, logits_to_keep=1)
        share = held_bytes(cache) / held_bytes(full)
        assert share == pytest.approx(held(policy, model, 24, 96).share, rel=0.002)
        assert share < 0.275
