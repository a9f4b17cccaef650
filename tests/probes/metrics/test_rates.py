"""The metrics against loops, golden values and planted answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import InputError
from sinkscope.probes import metrics
from tests.families.contract import received


def alphas(samples: int = 5, layers: int = 3, heads: int = 4, tokens: int = 12) -> np.ndarray:
    weights = torch.randn(samples, layers, heads, tokens, tokens).mul(4).tril()
    weights = weights.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf).softmax(-1)
    return received(weights).numpy()


def test_the_sink_rate_is_a_count_over_samples_layers_and_heads() -> None:
    alpha = alphas()
    rate = metrics.sink_rate(alpha, 0.3)
    for position in range(alpha.shape[-1]):
        hits = [alpha[(*place, position)] > 0.3 for place in np.ndindex(5, 3, 4)]
        assert rate[position] == pytest.approx(100 * sum(hits) / len(hits))
    assert 0 < rate[0] < 100


def test_the_threshold_is_strict() -> None:
    assert metrics.sink_rate(np.full((1, 1, 1, 1), 0.25), 0.25)[0] == 0
    assert metrics.sink_rate(np.full((1, 1, 1, 1), 0.25), 0.2499)[0] == 100


def test_thresholding_comes_before_averaging() -> None:
    alpha = np.array([0.0, 0.0, 0.0, 0.8]).reshape(4, 1, 1, 1)
    assert metrics.sink_rate(alpha, 0.3)[0] == 25


@pytest.mark.parametrize(("tokens", "golden"), [(8, 0.339732), (10, 0.292897), (16, 0.211296), (64, 0.0741233)])
def test_uniform_attention_has_the_golden_alpha(tokens: int, golden: float) -> None:
    weights = torch.ones(tokens, tokens).tril()
    alpha = received((weights / weights.sum(-1, keepdim=True))[None, None]).numpy()
    assert alpha[0, 0, 0] == pytest.approx(golden, abs=1e-6)
    assert metrics.sink_rate(alpha[:, None], 0.3)[0] == (100 if tokens < 10 else 0)


def test_a_planted_sink_is_found_in_full_and_nowhere_else() -> None:
    weights = torch.zeros(2, 3, 16, 16)
    weights[..., 0] = 1
    rate = metrics.sink_rate(received(weights).numpy()[:, None], 0.3)
    assert rate[0] == 100
    assert not rate[1:].any()


@given(st.permutations(range(3)), st.permutations(range(4)))
def test_the_order_of_layers_and_heads_does_not_matter(layers: list[int], heads: list[int]) -> None:
    torch.manual_seed(0)
    alpha = alphas()
    np.testing.assert_allclose(metrics.sink_rate(alpha[:, layers][:, :, heads], 0.3), metrics.sink_rate(alpha, 0.3))


def test_missing_heads_and_positions_count_nowhere() -> None:
    alpha = alphas()
    wide = np.full((5, 3, 6, 14), np.nan)
    wide[:, :, :4, :12] = alpha
    rate = metrics.sink_rate(wide, 0.3)
    np.testing.assert_allclose(rate[:12], metrics.sink_rate(alpha, 0.3))
    assert np.isnan(rate[12:]).all()


def test_a_layer_counts_once_however_many_heads_it_has() -> None:
    alpha = np.full((1, 2, 4, 1), np.nan)
    alpha[0, 0, :1], alpha[0, 1] = 0.9, 0.0
    assert metrics.sink_rate(alpha, 0.3)[0] == 50


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_an_epsilon_outside_zero_and_one_is_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        metrics.sink_rate(alphas(), epsilon)


def test_the_papers_slot_counts_its_dummy_query() -> None:
    """T + 1 rows over T + 1 columns, written out: row 0 is all on the slot (catalogue 12.2)."""
    slot = np.random.default_rng(0).random((2, 7))
    whole = np.concatenate([np.ones((2, 1)), slot], 1)
    wanted = whole.sum(1) / 8
    found = metrics.paper_slot(slot.mean(1)[:, None, None], np.full((2, 1), 7))[:, 0, 0]
    np.testing.assert_allclose(found, wanted)


def test_ratios_leave_the_first_token_out_of_the_mean() -> None:
    lengths = np.array([[8.0, 1.0, 3.0], [6.0, 2.0, np.nan]])
    assert metrics.first_over_rest(lengths).tolist() == [4.0, 3.0]
    assert np.isnan(metrics.first_over_rest(np.array([[5.0]]))).all()


def test_bootstrap_intervals_hold_the_mean_and_shrink_with_samples() -> None:
    generator = np.random.default_rng(0)
    few, many = generator.normal(5, 2, 20), generator.normal(5, 2, 2000)
    widths = []
    for values in (few, many):
        low, high = metrics.bootstrap(values)
        assert low < values.mean() < high
        widths.append(high - low)
    assert widths[1] == pytest.approx(2 * 1.96 * 2 / 2000**0.5, rel=0.15)
    assert widths[1] < widths[0] / 5
    assert [metrics.bootstrap(few, seed=1), metrics.bootstrap(few, seed=1)] == [metrics.bootstrap(few, seed=1)] * 2


def test_bootstrap_leaves_out_samples_without_a_value() -> None:
    values = np.array([1.0, np.nan, 1.0])
    assert metrics.bootstrap(values) == (1.0, 1.0)
