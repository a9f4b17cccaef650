"""A cache learns of each pass what transformers does not tell it, and refuses what it would get wrong."""

from __future__ import annotations

import gc
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

from sinkscope.attention import CATALOG, AttentionSpec, Causal, Window
from sinkscope.caches import Coming, FollowedLayer, FollowingCache
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.model import attach


class Noting(FollowedLayer, DynamicLayer):
    """Keeps everything, and notes what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Coming] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.told.append(self.taken(key_states))
        return super().update(key_states, value_states, *args, **kwargs)


class NotingCache(FollowingCache):
    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__(model)
        self.layers = [Noting() for _ in self.layers]

    @property
    def told(self) -> list[Coming]:
        return self.layers[0].told


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, num_key_value_heads=2, **sizes)).eval()


IDS = torch.arange(10)[None].repeat(2, 1) + torch.tensor([[1], [7]])
MASK = torch.ones(2, 10).long()
PADDED = MASK.clone().index_put_((torch.tensor(1), torch.arange(3)), torch.tensor(0))


def test_generate_tells_padding_and_length_of_each_pass(model: LlamaForCausalLM) -> None:
    cache = NotingCache(model)
    model.generate(IDS, attention_mask=PADDED, past_key_values=cache, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert [(told.seen, told.queries) for told in cache.told] == [(0, 10), (10, 1), (11, 1)]
    assert [told.pads.tolist() for told in cache.told if told.pads is not None] == [[0, 3]] * 3


def test_positions_are_added_where_none_are_given(model: LlamaForCausalLM) -> None:
    cache = NotingCache(model)
    given: list[Tensor] = []
    model.model.register_forward_pre_hook(lambda m, a, kwargs: given.append(kwargs["position_ids"]), with_kwargs=True)
    with torch.no_grad():
        model(IDS, attention_mask=PADDED, past_key_values=cache)
    assert given[0][1, 3:].tolist() == list(range(7))
    assert given[0][0].tolist() == list(range(10))


@torch.no_grad()
def test_what_it_would_get_wrong_is_refused(model: LlamaForCausalLM) -> None:
    cache = NotingCache(model)
    with pytest.raises(InputError, match="use_cache"):
        model(IDS, past_key_values=cache, use_cache=False)
    model(IDS, attention_mask=PADDED, past_key_values=cache)
    step: dict[str, Any] = {"input_ids": IDS[:, :1], "past_key_values": cache}
    with pytest.raises(InputError, match="has no attention_mask"):
        model(**step)
    longer = torch.cat([PADDED, torch.ones(2, 1).long()], 1)
    with pytest.raises(InputError, match="rows continue at"):
        model(**step, attention_mask=longer, position_ids=torch.tensor([[10], [10]]))
    with pytest.raises(InputError, match="12 columns for 11 tokens"):
        model(**step, attention_mask=torch.cat([longer, torch.ones(2, 1).long()], 1))
    with pytest.raises(InputError, match="changed between"):
        model(**step, attention_mask=longer.flip(0))
    with pytest.raises(InputError, match="on the left"):
        model(**step, attention_mask=longer.flip(1))
    with pytest.raises(InputError, match="cannot be cropped"):
        cache.crop(-1)
    with pytest.raises(InputError, match="call that model itself"):
        model.model(IDS[:, :1], past_key_values=cache)
    with pytest.raises(InputError, match="call that model itself"):
        deepcopy(model)(**step, attention_mask=longer)
    model(**step, attention_mask=longer)
    assert cache.get_seq_length() == 11


@torch.no_grad()
def test_a_copy_is_followed_and_shares_nothing_but_the_model(model: LlamaForCausalLM) -> None:
    cache = NotingCache(model)
    model(IDS, attention_mask=PADDED, past_key_values=cache)
    copy = deepcopy(cache)
    longer = torch.cat([PADDED, torch.ones(2, 1).long()], 1)
    model(IDS[:, :1], attention_mask=longer, past_key_values=copy)
    assert (cache.get_seq_length(), copy.get_seq_length()) == (10, 11)


def test_the_hook_goes_with_the_cache(model: LlamaForCausalLM) -> None:
    cache = NotingCache(model)
    assert len(model._forward_pre_hooks) == 1
    del cache
    gc.collect()
    assert len(model._forward_pre_hooks) == 0


def test_gradients_are_refused(model: LlamaForCausalLM) -> None:
    with pytest.raises(InputError, match="no_grad"):
        model(IDS, past_key_values=NotingCache(model))


@pytest.mark.parametrize("name", ["exclusive", "stable_mask", "stick_breaking"])
def test_operations_that_read_every_key_are_refused(name: str, model: LlamaForCausalLM) -> None:
    attach(model, CATALOG[name])
    with pytest.raises(UnsupportedModelError, match="needs every key"):
        NotingCache(model)


def test_an_attached_window_counts_keys_at_hand_so_it_is_refused(model: LlamaForCausalLM) -> None:
    attach(model, AttentionSpec(mask=Causal() & Window(4)))
    with pytest.raises(UnsupportedModelError, match="window"):
        NotingCache(model)
