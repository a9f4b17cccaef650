"""The mask of an attached layer: what transformers hands over, and what an operation adds to it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function

from sinkscope.attention import Causal, Full, Mask, TokenAxis, Visibility, Window
from sinkscope.hooks.dispatch import PLACE, Hosted, Joined, hosted, visibility_of


class Refused(Exception):
    pass


def bound(
    mask: Tensor | None,
    own: Mask = Causal(),  # noqa: B008  (a frozen value)
    *,
    causal: bool = True,
    query: tuple[int, int] = (0, 6),
    key: tuple[int, int] = (0, 6),
) -> Visibility:
    tokens = [TokenAxis.plain(stop - start, start=start) for start, stop in (query, key)]
    return visibility_of(mask, Joined.of(own), causal, tokens[0], tokens[1], Refused)


def triangle(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def test_no_mask_is_the_triangle_of_a_causal_layer_and_everything_otherwise() -> None:
    assert bound(None).is_causal_square
    assert bound(None, causal=False).is_full
    step = bound(None, query=(5, 6))
    assert torch.equal(step.dense()[0, 0], torch.ones(1, 6, dtype=torch.bool))
    chunk = bound(None, query=(4, 6))
    assert torch.equal(chunk.dense()[0, 0], triangle(2, 6))


@pytest.mark.parametrize("key", [(0, 6), (2, 6)])
def test_an_operations_window_is_counted_from_where_keys_stand(key: tuple[int, int]) -> None:
    """Also where a sliding cache has dropped the first keys."""
    found = bound(None, Causal() & Window(3), query=(4, 6), key=key).dense()[0, 0]
    written = bound(torch.ones(1, 1, 2, key[1] - key[0], dtype=torch.bool), Causal() & Window(3), query=(4, 6), key=key)
    whole = triangle(6, 6) & ~triangle(6, 6).tril(-3)
    assert torch.equal(found, whole[4:, slice(*key)])
    assert torch.equal(written.dense()[0, 0], found)


def test_transformers_mask_and_the_operations_are_both_in_force() -> None:
    real = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    host = sdpa_mask(2, 6, 6, mask_function=sliding_window_causal_mask_function(4), attention_mask=real)
    alone, both = bound(host), bound(host, Causal() & Window(2))
    assert torch.equal(alone.dense(), host)
    assert torch.equal(both.dense()[:, 0], host[:, 0] & bound(None, Causal() & Window(2)).dense()[:, 0])
    assert torch.equal(alone.query.valid, real)
    assert alone.query.order[0, 2:].tolist() == [0, 1, 2, 3]
    assert not alone.is_full
    assert not alone.is_causal_square


def test_a_static_caches_empty_places_are_cut_off() -> None:
    mask = torch.zeros(1, 1, 2, 9, dtype=torch.bool)
    mask[0, 0, :, :6] = triangle(2, 6)
    found = bound(mask, query=(4, 6))
    assert found.key.count == 6
    assert torch.equal(found.dense()[0, 0], triangle(2, 6))


def test_added_masks_are_read_and_biases_refused() -> None:
    added = torch.zeros(1, 1, 6, 6).masked_fill(~triangle(6, 6), torch.finfo(torch.float32).min)
    assert torch.equal(bound(added).dense()[0, 0], triangle(6, 6))
    assert torch.equal(bound(added.masked_fill(added < 0, -torch.inf)).dense()[0, 0], triangle(6, 6))
    for mask, words in (
        (added - 0.5, "adds numbers"),
        (triangle(6, 6)[None, None].int(), "ambiguous"),
        (triangle(6, 6)[None, None].expand(1, 2, 6, 6), "is not"),
        (triangle(6, 4)[None, None], "is not"),
    ):
        with pytest.raises(Refused, match=words):
            bound(mask)


def test_only_a_layer_that_attended_tells_something() -> None:
    module = nn.Identity()
    assert hosted(module) == {}
    setattr(module, PLACE, Hosted(torch.zeros(1, 2, 3)))
    assert hosted(module) == {}
    seen = Visibility.of(Full(), 2, 2)
    setattr(module, PLACE, Hosted(torch.zeros(1, 2, 3), visibility=seen))
    told = hosted(module)
    assert told["attention_mask"] is seen
    assert (told["hidden_states"].shape, told["softcap"], told["carried"]) == ((1, 2, 3), None, None)
