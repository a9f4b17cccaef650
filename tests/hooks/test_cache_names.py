"""A model's cache is found under both of transformers' names for it: `past_key_values`, and `cache` since 5.24."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache, LlamaForCausalLM

from sinkscope.caches import StreamingCache, evicting
from sinkscope.hooks import cache_name, given_cache, with_cache
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.quantization import Grid, quantized_cache
from sinkscope.trials import Feed

CACHES: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "stream": lambda model: nullcontext(StreamingCache(model, sinks=1, window=5)),
    "evicting": lambda model: evicting(model, "h2o", 6, when="always"),
    "rounded": lambda model: nullcontext(quantized_cache(model, Grid(2, "channel", group=4), Grid(2, "token"))),
}


class Named(LlamaForCausalLM):
    """A Llama whose cache is called `cache`, whatever transformers calls it."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
    ) -> Any:
        return LlamaForCausalLM.forward(
            self,
            input_ids,
            attention_mask,
            position_ids,
            cache,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )


def renamed(model: LlamaForCausalLM) -> LlamaForCausalLM:
    other = copy.deepcopy(model)
    other.__class__ = Named
    return other


def read(model: Any, opened: AbstractContextManager[Any]) -> Tensor:
    """Logits after each of the last twelve of twenty tokens."""
    ids = torch.randint(3, 90, (1, 20), generator=torch.Generator().manual_seed(3))
    with torch.no_grad(), opened as cache:
        feed = Feed(model, cache)
        return torch.cat([feed.read(part) for part in (ids[:, :8], *ids[:, 8:].split(1, 1))])


@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_under_the_new_name_does_what_it_does_under_the_old(kind: str, tiny_llama: LlamaForCausalLM) -> None:
    model = renamed(tiny_llama)
    assert cache_name(model) == "cache"
    found = read(model, CACHES[kind](model))
    torch.testing.assert_close(found, read(tiny_llama, CACHES[kind](tiny_llama)), rtol=0, atol=0)


def test_the_lab_model_takes_both_and_returns_it_under_either() -> None:
    model = LabForCausalLM(LabConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)).eval()
    ids = torch.arange(1, 10)[None]
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[:, 5:]
        for name in ("past_key_values", "cache"):
            first = model(ids[:, :5], use_cache=True)
            held = given_cache(first)
            assert held is not None
            torch.testing.assert_close(model(ids[:, 5:], **{name: held}).logits, whole, rtol=1e-5, atol=1e-5)
            assert held.get_seq_length() == 9
    assert with_cache(model, held)[cache_name(model) or ""] is held
