"""Score biases by distance: published slopes and buckets, and what uniform content then attends to."""

from __future__ import annotations

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from sinkscope.attention import Bias, Causal, Visibility
from sinkscope.model.positions import (
    Alibi,
    DistanceBias,
    RelativePaper,
    RelativeT5,
    TokenPositions,
    alibi_slopes,
    bucket,
)

DISTANCES = [0, 1, 15, 16, 17, 31, 32, 63, 64, 90, 127, 128, 500]


def causal(length: int, queries: int | None = None) -> TokenPositions:
    return TokenPositions.of(Visibility.of(Causal(), queries or length, length))


def first_received(bias: torch.Tensor) -> list[float]:
    """alpha_0 of each head where content is the same everywhere, so that the bias alone decides (propositions 2, 3)."""
    future = torch.ones(bias.shape[-2:]).triu(1).bool()
    return bias.double().masked_fill(future, -torch.inf).softmax(-1)[0, :, :, 0].mean(-1).tolist()


def test_alibi_slopes_are_the_published_ones():
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    expected = [*(2.0**-h for h in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12).tolist() == pytest.approx(expected, rel=1e-6)
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert [len(alibi_slopes(heads)) for heads in range(1, 20)] == list(range(1, 20))


def test_buckets_are_the_published_ones():
    assert bucket(torch.tensor(DISTANCES)).tolist() == [0, 1, 15, 16, 16, 21, 21, 26, 26, 29, 31, 31, 31]


@pytest.mark.parametrize("two_sided", [False, True])
def test_buckets_are_those_of_transformers_t5(two_sided):
    distance = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(-distance, bidirectional=two_sided)
    assert torch.equal(bucket(distance, two_sided=two_sided), expected)


def test_alibi_on_repeated_tokens_is_the_published_alpha():
    """Gu et al. 2025, proposition 3: T = 64, eight heads."""
    found = first_received(Alibi(8).bias(causal(64)).rows(slice(None)))
    assert found == pytest.approx([0.0283, 0.0360, 0.0447, 0.0540, 0.0620, 0.0675, 0.0707, 0.0724], abs=6e-5)


def test_the_papers_relative_bias_makes_a_sink_of_repeated_tokens():
    """It grows with the distance, so that alpha_0 at T = 64 is above 0.3; its negative would be small."""
    bias = RelativePaper(is_causal=True).bias(causal(64)).rows(slice(None))
    assert first_received(bias) == pytest.approx([0.33396], abs=1e-5)
    assert first_received(-bias) == pytest.approx([0.0220], abs=1e-4)


def test_t5_learns_a_number_per_head_and_bucket():
    torch.manual_seed(0)
    scheme = RelativeT5(heads=400, width=64, is_causal=True)
    assert scheme.table.shape == (32, 400)
    assert scheme.table.std().item() == pytest.approx(64**-0.5, rel=0.05)
    bias = scheme.bias(causal(40)).rows(slice(None))
    assert bias.shape == (1, 400, 40, 40)
    assert torch.equal(bias[0, :, 39, 8], scheme.table[21])
    bias[0, 3, 39, 8].backward()
    assert scheme.table.grad is not None
    assert scheme.table.grad.nonzero().tolist() == [[21, 3]]


def test_t5_looks_ahead_in_a_bidirectional_model_only():
    ahead = {}
    for is_causal in (True, False):
        scheme = RelativeT5(heads=2, width=8, is_causal=is_causal)
        bias = scheme.bias(causal(9)).rows(slice(None))[0]
        ahead[is_causal] = bias[:, 2, 5], scheme.table
    found, table = ahead[True]
    assert torch.equal(found, table[0])
    found, table = ahead[False]
    assert torch.equal(found, table[16 + 3])


def test_bidirectional_distances_are_absolute():
    for scheme in (Alibi(4), RelativePaper(is_causal=False)):
        bias = scheme.bias(causal(20)).rows(slice(None))
        assert torch.equal(bias, bias.mT)


@pytest.mark.parametrize(
    "scheme", [Alibi(4), RelativePaper(True), RelativeT5(4, 16, True)], ids=lambda s: type(s).__name__
)
def test_rows_are_those_of_the_whole(scheme):
    """A few rows at a time, and the last queries of a cache, are the same numbers."""
    whole = scheme.bias(causal(30))
    assert isinstance(whole, DistanceBias)
    assert isinstance(whole, Bias)
    assert torch.equal(torch.cat([whole.rows(slice(0, 7)), whole.rows(slice(7, 30))], 2), whole.rows(slice(None)))
    assert torch.equal(scheme.bias(causal(30, queries=4)).rows(slice(None)), whole.rows(slice(26, 30)))
