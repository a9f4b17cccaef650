"""Closed forms against their definitions, written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sinkscope_replication.theory import closed_forms as closed

BUCKETS = {0: 0, 1: 1, 15: 15, 16: 16, 17: 16, 31: 21, 32: 21, 63: 26, 64: 26, 90: 29, 127: 31, 128: 31, 500: 31}


def test_weights_by_distance_are_a_softmax_over_the_past():
    bias = torch.randn(3, 6)
    found = closed.by_distance(bias)
    for head in range(3):
        for t in range(6):
            row = [math.exp(bias[head, t - i]) for i in range(t + 1)]
            expected = [value / sum(row) for value in row] + [0.0] * (5 - t)
            np.testing.assert_allclose(found[head, t].numpy(), expected, rtol=1e-6)


def test_received_divides_by_the_queries_that_see_a_key():
    weights = torch.rand(2, 5, 5, dtype=torch.float64).tril()
    expected = [[weights[head, k:, k].sum() / (5 - k) for k in range(5)] for head in range(2)]
    torch.testing.assert_close(closed.received(weights), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("distance", "bucket"), BUCKETS.items())
def test_buckets(distance, bucket):
    assert closed.bucket(distance) == bucket


def test_slopes():
    assert closed.alibi_slopes(8) == [2**-h for h in range(1, 9)]
    assert closed.alibi_slopes(4) == [2 ** (-2 * h) for h in range(1, 5)]


def test_rotary_scores_turn_pairs_by_hand():
    query, key = torch.randn(2, 6, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    found = closed.rotary_scores(query, key, 5, theta=100.0)
    for head in range(2):
        for m in range(5):
            score = 0.0
            for c in range(3):
                angle = m * 100.0 ** (-2 * c / 6)
                x, y = query[head, c], query[head, c + 3]
                turned = (x * math.cos(angle) - y * math.sin(angle), y * math.cos(angle) + x * math.sin(angle))
                score += turned[0] * key[head, c] + turned[1] * key[head, c + 3]
            assert float(found[head, m]) == pytest.approx(float(score) / 6**0.5, abs=1e-12)


@pytest.mark.parametrize("xi", [0.0, 0.7, 3.0])
def test_the_rotary_bound_as_written(xi):
    found = closed.rotary_bound(torch.tensor([xi], dtype=torch.float64), 9)[0]
    expected = [math.exp(2 * xi) / (math.exp(2 * xi) + t - 1) for t in range(1, 10)]
    np.testing.assert_allclose(found.numpy(), expected)


def test_the_rotary_bound_of_large_scores_is_one_not_nan():
    assert closed.rotary_bound(torch.tensor([1e6], dtype=torch.float64), 4).tolist() == [[1.0] * 4]


@pytest.mark.parametrize(("spread", "count"), [(0.0, 5), (2.0, 2), (3.0, 64)])
def test_least_entropy_is_that_of_one_logit_above_equal_ones(spread, count):
    height = spread / math.sqrt((count - 1) / count)
    weights = np.exp(np.array([height] + [0.0] * (count - 1)))
    weights /= weights.sum()
    assert closed.least_entropy(spread, count) == pytest.approx(float(-(weights * np.log(weights)).sum()))


def test_the_p_normaliser_as_written():
    similarities = torch.rand(4, 7, dtype=torch.float64)
    found = closed.power_normalized(similarities, 3.0)
    expected = similarities / similarities.pow(3).sum(-1, keepdim=True) ** (1 / 3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(closed.power_normalized(9 * similarities, 3.0), expected)


def test_spread_is_zero_where_all_tokens_are_one():
    assert closed.spread(torch.ones(4, 3)) == 0
    assert closed.spread(torch.eye(4)) == pytest.approx(math.sqrt(3))


def test_path_weights_sum_over_all_paths():
    layers = [torch.rand(2, 3, 3, dtype=torch.float64).tril() for _ in range(2)]
    first, second = (layer.sum(0) + torch.eye(3) for layer in layers)
    found = closed.path_weights(layers)
    for j in range(3):
        for i in range(3):
            assert float(found[j, i]) == pytest.approx(sum(float(second[j, k] * first[k, i]) for k in range(3)))
