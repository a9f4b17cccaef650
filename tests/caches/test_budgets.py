"""How many keys layers and heads may keep: against loops, and by what must add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.caches import AdaptiveHeads, HeadClasses, Pyramid, Uniform, evicting
from sinkscope.errors import InputError
from sinkscope.measurement import Measurement
from tests.families.registry import FAMILIES

TOKENS = torch.tensor([100, 40])


def test_a_share_is_of_each_rows_tokens() -> None:
    assert Uniform(0.29).of_layer(0, 1, TOKENS).tolist() == [29, 11]
    assert Uniform(1.0).of_layer(0, 1, TOKENS).tolist() == [100, 40]
    assert Uniform(0.001).of_layer(0, 1, TOKENS).tolist() == [1, 1]
    assert Uniform(7).of_layer(3, 9, TOKENS).tolist() == [7, 7]


@given(st.integers(2, 40), st.integers(2, 60), st.floats(1.0, 30.0))
def test_a_pyramid_falls_and_its_mean_is_the_budget(layers: int, mean: int, beta: float) -> None:
    found = torch.stack([Pyramid(mean, beta).of_layer(layer, layers, TOKENS) for layer in range(layers)]).double()
    assert bool((found[1:] <= found[:-1]).all())
    assert bool((found.mean(0) - mean).abs().max() <= 0.5 + 1e-9) or bool((found == 1).any())
    assert bool((found[0] <= torch.maximum(TOKENS, torch.tensor(mean))).all())


def adaptive(scores: list[list[float]], count: int, alpha: float) -> list[int]:
    """Ada-KV by loops: what must stay and the best `alpha` of the rest of `count` are safe in each head.

    What is left goes to the highest scores of all heads.
    """
    ranked = [sorted((s for s in head if s > -np.inf), reverse=True) for head in scores]
    must = [sum(s == np.inf for s in head) for head in scores]
    safe = [max(1, m + int(max(0, count - m) * alpha + 1e-9)) for m in must]
    taken = [min(s, len(head)) for s, head in zip(safe, ranked, strict=True)]
    left = count * len(scores) - sum(taken)
    rest = sorted(((s, h) for h, head in enumerate(ranked) for s in head[safe[h] :]), key=lambda pair: -pair[0])
    for _, head in rest[:left]:
        taken[head] += 1
    for late in range(left - len(rest)):  # for tokens to come
        taken[late % len(taken)] += 1
    return taken


@given(st.integers(0, 10**6), st.integers(1, 15), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_adaptive_heads_are_those_of_loops(seed: int, count: int, alpha: float) -> None:
    scores = torch.rand(2, 3, 12, generator=torch.Generator().manual_seed(seed))
    scores[1, :, :4] = -torch.inf  # padding
    scores[0, 1] *= 5
    scores[0, 0, 3] = torch.inf
    found = AdaptiveHeads(7, alpha).of_heads(scores, torch.tensor([count, count]), 0)
    assert found.tolist() == [adaptive(rows.tolist(), count, alpha) for rows in scores]


def test_classes_keep_all_or_the_small_budget() -> None:
    model = FAMILIES["llama"].build("sdpa")
    ids = torch.randint(3, 90, (2, 20), generator=torch.Generator().manual_seed(3))
    retrieves = np.array([[True, False], [False, False]])
    with evicting(model, "streaming", HeadClasses(retrieves, 6)) as cache, torch.no_grad():
        model(ids, past_key_values=cache)
        logits = model(ids[:, :1], past_key_values=cache).logits
    wanted = [[list(range(21)), [0, 1, 2, 3, 18, 19, 20]], [[0, 1, 2, 3, 18, 19, 20]] * 2]
    for layer, heads in zip(cache.kept, wanted, strict=True):
        assert [[p for p in head if p >= 0] for head in layer.places[0].tolist()] == heads
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Uniform("8"), "a number of keys"),  # type: ignore[arg-type]
        (lambda: Pyramid(8, 0.5), "at least 1"),
        (lambda: AdaptiveHeads(8, 1.5), "between 0 and 1"),
        (lambda: AdaptiveHeads(-8), "a number of keys"),
        (lambda: HeadClasses(np.zeros((2, 2)), 4), "expected booleans"),
        (lambda: HeadClasses.of(Measurement(xr.Dataset()), 4), "no window_mass"),
        (lambda: HeadClasses.of(Measurement(xr.Dataset()), 4, quantile=2), "between 0 and 1"),
    ],
)
def test_bad_input_is_refused(make: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_classes_of_another_model_are_refused() -> None:
    budget = HeadClasses(np.zeros((3, 2), bool), 8)
    with pytest.raises(InputError, match="classified"), evicting(FAMILIES["llama"].build("sdpa"), "streaming", budget):
        pass
