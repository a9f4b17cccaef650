"""Several tokens behind a cache are read as in one pass, one by one, or not at all: never silently otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.caches import StreamingCache
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import difference_behind, parameters, reads_at_once
from sinkscope.measurement import AttentionReceived, measure, observe
from sinkscope.model import load
from sinkscope.trials import Feed
from tests.families.registry import FAMILIES

STATES = ("bamba", "zamba2", "nemotron_h", "granitemoehybrid", "lfm2", "qwen3_next", "qwen3_5")


FORGETS = ("jamba",)  # in transformers 5.23; a Mamba of the second kind goes on from its state


def text(model: Any) -> Tensor:
    return torch.randint(3, 40, (1, 9), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def behind(model: Any, ids: Tensor, *cuts: int) -> Tensor:
    """Logits of the last five tokens, read in the pieces between these places."""
    cache, found = DynamicCache(config=model.config), []
    for start, stop in zip((0, *cuts), (*cuts, ids.shape[1]), strict=True):
        places = torch.arange(start, stop)[None]
        given = {"position_ids": places} if "position_ids" in parameters(model).parameters else {}
        found.append(model(ids[:, start:stop], past_key_values=cache, use_cache=True, **given).logits)
    return torch.cat(found, 1)[:, 4:]


@pytest.fixture(scope="module")
def hybrid() -> Any:
    """A model whose Mamba layers forget their states."""
    return load("nano-hybrid").eval()


@pytest.mark.parametrize(
    "name", ["llama", "jamba", "falcon_h1", *(pytest.param(one, marks=pytest.mark.slow) for one in STATES)]
)
def test_the_verdict_is_that_of_tokens_one_by_one(name: str) -> None:
    model = FAMILIES[name].build("sdpa").eval()
    ids = text(model)
    single = behind(model, ids, *range(4, 9))
    same = bool((behind(model, ids, 4) - single).abs().max() <= 1e-5 * single.abs().max())
    assert same == (name not in FORGETS)
    assert reads_at_once(model, DynamicCache(config=model.config)) == same
    assert (difference_behind(model, ids, 4, places=True) == 0) == same


def test_evaluation_reads_on_one_by_one(hybrid: Any) -> None:
    ids = text(hybrid)
    feed = Feed(hybrid, DynamicCache(config=hybrid.config))
    with torch.no_grad():
        feed.read(ids[:, :4])
        found = feed.read(ids[:, 4:])
        torch.testing.assert_close(found, hybrid(ids).logits[:, -1], atol=1e-4, rtol=1e-4)
        assert (behind(hybrid, ids, 4)[:, -1] - found).abs().max() > 1e-2  # in one pass it would be silently wrong
    assert feed.seen == 9


def test_observers_and_caches_refuse_what_the_model_reads_wrong(hybrid: Any) -> None:
    ids = text(hybrid)
    cache = DynamicCache(config=hybrid.config)
    with torch.no_grad(), observe(hybrid, AttentionReceived()) as seen:
        hybrid(ids[:, :4], past_key_values=cache, use_cache=True)
        with pytest.raises(UnsupportedModelError, match="token by token"):
            hybrid(ids[:, 4:], past_key_values=cache, use_cache=True)
        for place in range(4, 9):
            hybrid(ids[:, place : place + 1], past_key_values=cache, use_cache=True)
    found = seen.measurement().data["attention_received"]
    whole = measure(hybrid, ids, [AttentionReceived()]).data["attention_received"]
    torch.testing.assert_close(torch.tensor(found.values), torch.tensor(whole.values), atol=1e-4, rtol=1e-4)
    jamba = FAMILIES["jamba"].build("sdpa").eval()
    stream = StreamingCache(jamba, 2, 6)
    with torch.no_grad():
        jamba(text(jamba)[:, :4], past_key_values=stream, use_cache=True)
        with pytest.raises(UnsupportedModelError, match="token by token"):
            jamba(text(jamba)[:, 4:], past_key_values=stream, use_cache=True)
        jamba(text(jamba)[:, 4:5], past_key_values=stream, use_cache=True)
