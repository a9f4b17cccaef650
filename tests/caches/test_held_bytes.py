"""What a cache holds is counted by storages, not by what tensors show of them."""

from __future__ import annotations

import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from sinkscope.caches.sizes import held_bytes
from tests.trials.caches import ANY, keeping, llama, texts

TOKEN = 2 * 2 * 8 * 4  # keys and values of 2 heads of 8 channels, 4 bytes each


def test_the_full_cache_holds_every_token_of_every_layer() -> None:
    model, ids = llama(), texts(3, 20)
    cache = DynamicCache(config=model.config)
    assert held_bytes(cache) == 0
    model(ids, past_key_values=cache)
    assert held_bytes(cache) == 2 * 3 * 20 * TOKEN


def test_a_window_that_is_a_view_holds_the_prompt() -> None:
    """transformers' own sliding layer shows 7 keys of 100 and keeps 100 alive, until the next token."""
    layer = DynamicSlidingWindowLayer(sliding_window=8)
    cache = DynamicCache()
    cache.layers = [layer]
    cache.update(torch.zeros(1, 2, 100, 8), torch.zeros(1, 2, 100, 8), 0)
    assert layer.keys.nbytes + layer.values.nbytes == 7 * TOKEN
    assert held_bytes(cache) == 100 * TOKEN + 8  # and a place or so of bookkeeping


def test_two_tensors_of_one_storage_count_once() -> None:
    cache = DynamicCache()
    shared = torch.zeros(1, 2, 10, 8)
    cache.update(shared, shared, 0)
    cache.layers[0].keys = shared
    cache.layers[0].values = shared[:, :, :4]
    assert held_bytes(cache) == shared.nbytes


def test_buffers_made_beforehand_count_in_full() -> None:
    model = llama()
    cache = StaticCache(config=model.config, max_cache_len=50)
    model(texts(1, 5), past_key_values=cache)
    assert held_bytes(cache) >= 2 * 50 * TOKEN
    assert held_bytes(cache) < 2 * 51 * TOKEN


def test_tensors_in_containers_count_and_modules_do_not() -> None:
    cache = DynamicCache()
    cache.rings = {"last": [torch.zeros(3), (torch.zeros(2, dtype=torch.int64),)]}
    cache.model = llama()
    assert held_bytes(cache) == 12 + 16


def test_what_is_dropped_is_not_held() -> None:
    model = llama()
    with keeping(2, 3).open(model, ANY) as cache:
        model(texts(1, 20), past_key_values=cache)
        assert held_bytes(cache) == 2 * 5 * TOKEN
