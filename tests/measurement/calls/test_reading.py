"""What attention functions are given, in every form, read as one kind of call."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.dispatch import Invocation
from sinkscope.hooks.modules import Layer
from sinkscope.hooks.passes import Forward, axes
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.masks import Rule
from sinkscope.measurement.calls.reading import read_call

QUERIES = 6


class Module(nn.Module):
    is_causal = True


def given(
    mask: object,
    implementation: str = "sdpa",
    keys: int = QUERIES,
    seen: int = 0,
    cached: bool = False,
    **kwargs: object,
) -> AttentionCall:
    query, key = torch.randn(2, 4, QUERIES, 8), torch.randn(2, 2, keys, 8)
    tensors = {"query": query, "key": key, "value": key, "attention_mask": mask}
    invocation = Invocation(Module(), implementation, {**tensors, **kwargs}, query.transpose(1, 2), None)
    cache = DynamicCache() if seen or cached else None
    layer, forward = Layer("attn", 0, "decoder"), Forward(batch=2, seen=seen, cache=cache, ids=None)
    return read_call(invocation, layer, forward, ("tokens", "tokens"), "made-up")


def of_longer_text(mask: torch.Tensor, tokens: int) -> AttentionCall:
    """A layer over `QUERIES` tokens in a model that was given `tokens`, the first of the first row padding."""
    query = torch.randn(2, 4, QUERIES, 8)
    arguments = {"query": query, "key": query, "value": query, "attention_mask": mask}
    real = torch.ones(2, tokens, dtype=torch.bool)
    real[0, 0] = False
    known = {"real": {"tokens": real}, "lengths": {"tokens": tokens}}
    invocation = Invocation(Module(), "sdpa", arguments, query.transpose(1, 2), None)
    forward = Forward(batch=2, seen=0, cache=None, ids=None, **known)
    return read_call(invocation, Layer("attn", 0, "decoder"), forward, ("tokens", "tokens"), "made-up")


def test_a_mask_over_other_tokens_says_nothing_of_a_layer() -> None:
    """As many tokens as the model was given: its mask counts. Otherwise the layer's own does."""
    hidden = torch.ones(2, 1, QUERIES, QUERIES).tril().bool()
    hidden[1, :, :, 4:] = False
    own = of_longer_text(hidden, QUERIES + 3)
    assert own.real_keys is not None
    assert own.real_keys.tolist() == [[True] * QUERIES, [True] * 4 + [False] * 2]
    stated = torch.ones(2, 1, QUERIES, QUERIES).tril().bool()
    stated[0, :, :, 0] = False
    same = of_longer_text(stated, QUERIES)
    assert same.real_keys is not None
    assert same.real_keys.tolist() == [[False] + [True] * (QUERIES - 1), [True] * QUERIES]


def matrix(call: AttentionCall) -> torch.Tensor:
    keys = call.mask.keys
    return call.mask.visible(slice(0, 2), slice(0, QUERIES), slice(0, keys)).expand(2, 1, QUERIES, keys)


def test_no_mask_means_what_the_implementation_makes_of_it() -> None:
    triangle = torch.ones(QUERIES, QUERIES).tril().bool()
    assert torch.equal(matrix(given(None))[0, 0], triangle)
    assert matrix(given(None, is_causal=False)).all()
    assert matrix(given(None, "eager")).all(), "eager functions add the mask that they are given and nothing else"


def test_flash_attention_aligns_at_the_bottom_right_and_knows_padding_and_windows() -> None:
    padding = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9])
    call = given(padding, "flash_attention_2", keys=9, seen=3, sliding_window=4)
    distance = torch.arange(3, 9)[:, None] - torch.arange(9)
    wanted = (distance >= 0) & (distance < 4) & padding[:, None, :].bool()
    assert torch.equal(matrix(call)[:, 0], wanted)


def test_scaling_sinks_and_biases_are_read() -> None:
    call = given(None, s_aux=torch.arange(4.0), position_bias=torch.ones(1, 4, 1, QUERIES + 2), softcap=3.0)
    assert call.scaling == pytest.approx(8**-0.5)
    assert call.sink.shape == (1, 4, 1)
    assert call.bias.shape == (1, 4, QUERIES, QUERIES)
    assert (call.softcap, given(None, scaling=0.5).scaling) == (3.0, 0.5)
    assert given(None, sinks=torch.ones(2, 4, QUERIES, 1)).sink.shape == (2, 4, QUERIES)


@pytest.mark.parametrize(
    ("mask", "implementation", "message"),
    [
        (object(), "flex_attention", "cannot read its object mask"),
        (torch.ones(2, QUERIES), "sdpa", "cannot read its Tensor mask"),
        (torch.ones(2, 1, QUERIES, QUERIES - 1), "sdpa", "cannot read its Tensor mask"),
        (None, "paged|eager", "paged attention"),
    ],
)
def test_what_can_not_be_read_is_refused(mask: object, implementation: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"family 'made-up', layer 'attn': {message}"):
        given(mask, implementation)


def test_a_cache_that_drops_tokens_must_say_which() -> None:
    with pytest.raises(UnsupportedModelError, match="attends to 8 of 10 tokens and does not say which"):
        given(None, keys=8, seen=4)


def test_the_rest_of_a_static_cache_is_no_key() -> None:
    call = given(None, keys=32, cached=True)
    assert (call.mask.keys, call.key.shape[2], call.key_start) == (QUERIES, QUERIES, 0)
    assert isinstance(call.mask, Rule)


def test_more_keys_than_tokens_without_a_cache_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="attends to 8 keys for 6 tokens, and its mask does not tell"):
        given(None, keys=8)


def test_axes() -> None:
    assert axes("decoder", False) == axes("encoder", False) == axes("decoder", True) == ("tokens", "tokens")
    assert axes("encoder", True) == ("memory", "memory")
    assert axes("cross", True) == ("tokens", "memory")
    assert axes("vision", False) == ("vision", "vision")
