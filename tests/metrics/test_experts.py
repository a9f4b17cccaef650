"""The rule that calls experts super."""

from __future__ import annotations

import numpy as np

from sinkscope import metrics

LAYERS = [f"layers.{index}" for index in range(4)]


def peaks() -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 2, (5, 4, 64))


def test_planted_experts_are_found_and_nothing_else() -> None:
    values = peaks()
    values[2, 1, 7] = 500.0
    table = metrics.super_experts(values, LAYERS)
    assert table[["layer", "expert"]].values.tolist() == [["layers.1", 7]]
    assert table["peak"].iloc[0] == 500.0
    assert table["mean"].iloc[0] == values[:, 1, 7].mean()


def test_an_expert_far_below_the_largest_is_not_super() -> None:
    values = peaks()
    values[:, 1, 7], values[:, 2, 3] = 500.0, 20.0
    assert len(metrics.super_experts(values, LAYERS)) == 1
    assert len(metrics.super_experts(values, LAYERS, share=0.01)) == 2


def test_experts_that_were_never_used_count_nowhere() -> None:
    values = peaks()
    values[:, 0, 0] = np.nan
    values[:, 1, 7] = 500.0
    assert len(metrics.super_experts(values, LAYERS)) == 1
