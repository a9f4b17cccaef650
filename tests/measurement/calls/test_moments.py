"""Sums over logits in linear time are the sums over logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sinkscope.hooks import Layer
from sinkscope.measurement.calls import chunks as moments
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.masks import Rule


def call(queries: int, keys: int, causal: bool, sink: bool) -> AttentionCall:
    """Random queries and keys, keys far from zero as in a model with a bias."""
    random = torch.Generator().manual_seed(queries)
    query, key = (torch.randn(2, heads, n, 8, generator=random) for heads, n in ((4, queries), (2, keys)))
    made = AttentionCall(
        Layer("attn", 0, "decoder"), 3 * query, key + 5, key, Rule(keys, causal, keys - queries), 0.4, causal,
        keys - queries, 0, slice(keys - queries, keys),
    )  # fmt: skip
    return replace(made, sink=torch.tensor([0.5, -torch.inf, 3.0, 9.0])[None, :, None]) if sink else made


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "causal"), [(150, 150, True), (37, 150, True), (1, 9, True), (70, 90, False)]
)
def test_spread_and_count(queries: int, keys: int, causal: bool, sink: bool) -> None:
    """Over several blocks, cached keys, groups of heads, and however many heads are taken at once."""
    made = call(queries, keys, causal, sink)
    logits = (made.query.double() @ made.key.double().repeat_interleave(2, 1).mT) * 0.4
    visible = torch.ones(queries, keys).tril(keys - queries).bool() if causal else torch.ones(queries, keys).bool()
    if sink:
        assert made.sink is not None
        own = made.sink.double()[..., None].expand(2, 4, queries, 1)
        logits = torch.cat([own.nan_to_num(neginf=0.0), logits], -1)
        visible = torch.cat([own > -torch.inf, visible.expand(2, 4, -1, -1)], -1)
    count = visible.expand_as(logits).sum(-1)
    mean = logits.where(visible, 0.0).sum(-1) / count
    spread = (logits - mean[..., None]).where(visible, 0.0).square().sum(-1).sqrt()
    found, counted = moments.linear_spread(made)
    torch.testing.assert_close(found.double(), spread, rtol=1e-4, atol=2e-2)
    assert torch.equal(counted.expand_as(count), count.float())


def test_few_heads_at_once_are_all_heads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = call(150, 150, True, False)
    wanted = moments.linear_spread(made)[0]
    monkeypatch.setattr(moments, "HELD", 1)
    torch.testing.assert_close(moments.linear_spread(made)[0], wanted)
