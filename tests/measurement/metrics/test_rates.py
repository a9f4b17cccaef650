"""The metrics against loops, golden values and planted answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, measure, metrics, query_counts, visible_queries
from sinkscope.measurement.metrics import EPSILONS, lift, mass_on_first, sweep
from sinkscope.measurement.observers.incoming import IncomingAttention
from sinkscope.measurement.observers.lengths import ReceivedByLength
from tests.measurement.conftest import build
from tests.measurement.observers.naive import HUB, close, look
from tests.planted.factory import NULL, Plant, null_model, planted_ids, planted_model

LENGTHS = (8, 16, 24)


def received(weights: torch.Tensor) -> torch.Tensor:
    """alpha of causal maps: mean weight over the T − k queries that see key k."""
    tokens = weights.shape[-1]
    return weights.sum(-2) / torch.arange(tokens, 0, -1)


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
    """T + 1 rows over T + 1 columns, written out: row 0 is all on the slot."""
    slot = np.random.default_rng(0).random((2, 7))
    whole = np.concatenate([np.ones((2, 1)), slot], 1)
    wanted = whole.sum(1) / 8
    found = metrics.paper_slot(slot.mean(1)[:, None, None], np.full((2, 1), 7))[:, 0, 0]
    np.testing.assert_allclose(found, wanted)


def test_ratios_leave_the_first_token_out_of_the_mean() -> None:
    lengths = np.array([[8.0, 1.0, 3.0], [6.0, 2.0, np.nan]])
    assert metrics.first_over_rest(lengths).tolist() == [4.0, 3.0]
    assert np.isnan(metrics.first_over_rest(np.array([[5.0]]))).all()


def test_a_cell_of_the_sweep_is_the_share_of_heads_above_epsilon() -> None:
    received = np.array([[[[0.9, 0.2], [0.4, np.nan]], [[0.1, 0.31], [0.35, 0.0]]]])  # one sample, two layers and heads
    table = sweep(received, (0.3, 0.35))
    np.testing.assert_allclose(table, [[75, 25], [50, 0]])


def test_the_sweep_is_the_sink_rate_of_shorter_texts(ids: torch.Tensor) -> None:
    model = build("llama")
    data = measure(model, ids, [ReceivedByLength(LENGTHS)]).data
    table = sweep(data["attention_received_by_length"].values)
    assert table.shape == (5, 3)
    for column, length in enumerate(LENGTHS):
        measurement = measure(model, ids[:, :length], [AttentionReceived()])
        for row, epsilon in enumerate(EPSILONS):
            wanted = 100 * (measurement.data["attention_received"].values[..., 0] > epsilon).mean()
            assert table[row, column] == pytest.approx(wanted)
    assert bool((np.diff(table, axis=0) <= 0).all()), "never more heads above a higher threshold"


def test_a_planted_sink_is_one_at_every_threshold_and_length() -> None:
    observer = ReceivedByLength((16, 32))
    for plant, model, rate in ((Plant(), planted_model(), 75), (NULL, null_model(), 0)):
        data = measure(model, planted_ids(plant), [observer]).data["attention_received_by_length"]
        np.testing.assert_allclose(
            sweep(data.values, (0.3, 0.5, 0.8)), rate
        )  # the first of four layers has no sink yet


def test_an_epsilon_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="must lie between 0 and 1"):
        sweep(np.zeros((1, 1, 1, 1)), (1.5,))
    with pytest.raises(InputError, match="no epsilon"):
        sweep(np.zeros((1, 1, 1, 1)), ())


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("name", HUB)
def test_mass_is_the_mean_weight_on_the_first_columns(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, AttentionReceived())
    mass = mass_on_first(data["attention_received"].values, visible_queries(data), query_counts(data), count)
    for index, layer in enumerate(layers):
        close(mass[:, index], layer.weights[..., :count].sum(-1).mean(-1))


def test_mass_of_rows_shorter_than_asked_for_is_all_of_it() -> None:
    received = np.full((1, 1, 1, 6), np.nan)
    received[..., :3] = [0.611111, 0.416667, 1 / 3]  # uniform causal attention of three tokens
    seen = np.array([[[3, 2, 1, np.nan, np.nan, np.nan]]])
    assert float(mass_on_first(received, seen, np.array([[3]]), 6)[0, 0, 0]) == pytest.approx(1, abs=1e-5)
    nothing = np.full((1, 1, 4), np.nan)
    assert np.isnan(mass_on_first(nothing[:, :, None], nothing, np.array([[0]]), 2)).all()


@pytest.mark.parametrize("count", [0, 5])
def test_mass_on_more_than_was_measured_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="4 were measured"):
        mass_on_first(np.zeros((1, 1, 1, 4)), np.ones((1, 1, 4)), np.array([[4]]), count)


def test_uniform_attention_has_a_lift_of_one(ids: torch.Tensor) -> None:
    model = build("mistral")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    data = measure(model, ids, [AttentionReceived(), IncomingAttention()]).data
    close(lift(data["attention_received"].values, data["uniform_received"].values), np.ones((3, 2, 4, 24)), 1e-4)


def test_the_lift_of_a_planted_sink_stands_out() -> None:
    plant = Plant(sinks=(7,))
    observers = [AttentionReceived(), IncomingAttention()]
    planted, null = (
        measure(model, planted_ids(plant), observers).data for model in (planted_model(plant), null_model())
    )
    found, flat = (lift(data["attention_received"].values, data["uniform_received"].values) for data in (planted, null))
    assert found[:, 1:, :, 7].min() > 15
    assert np.delete(found[:, 1:, :, :28], 7, axis=-1)[..., 7:].max() < 1
    assert flat[..., :28].max() < 2


def test_a_key_that_no_query_sees_has_no_lift() -> None:
    assert np.isnan(lift(np.zeros((1, 1, 1, 2)), np.array([[[0.0, np.nan]]]))).all()


def test_the_mass_of_a_row_is_not_known_where_one_of_its_first_tokens_is_not() -> None:
    received = np.full((2, 1, 1, 6), 0.25)
    received[0, 0, 0, 2], received[1, 0, 0, 2:] = np.nan, np.nan
    seen = np.array([[[6.0] * 6], [[2, 2, *[np.nan] * 4]]])
    found = metrics.mass_on_first(received, seen, np.array([[6], [2]]))
    assert np.isnan(found[0, 0, 0])
    assert found[1, 0, 0] == 0.5, "a row of two tokens has no third"


def test_the_ratio_to_the_others_is_one_function_for_every_position() -> None:
    lengths = np.random.default_rng(0).uniform(1, 2, (2, 3, 4, 7))
    lengths[0, :, :, 5:] = np.nan
    np.testing.assert_array_equal(metrics.first_over_rest(lengths), metrics.over_others(lengths, 0))
    np.testing.assert_array_equal(metrics.value_ratio(lengths, 4), metrics.over_others(lengths, 4))
    row = lengths[0, 1, 2, :5]
    assert metrics.over_others(lengths, 3)[0, 1, 2] == pytest.approx(row[3] / np.delete(row, 3).mean())
    assert np.isnan(metrics.over_others(np.array([[5.0], [0.0]]), 0)).all()


def test_the_mass_is_the_integral_of_the_rate_over_thresholds() -> None:
    alpha = alphas()
    steps = np.linspace(0.1, 1.0, 2001)[:-1] + 0.9 / 4000
    integral = np.mean([metrics.sink_rate(alpha, float(epsilon)) for epsilon in steps], 0) * 0.9
    np.testing.assert_allclose(metrics.sink_mass(alpha), integral, atol=0.05)


def test_the_mass_from_zero_on_is_the_mean_and_knows_no_more_than_all() -> None:
    alpha = alphas()
    np.testing.assert_allclose(metrics.sink_mass(alpha, 1e-9), 100 * alpha.mean((0, 1, 2)), rtol=1e-5)
    one = np.array([1.0, 0.1, 0.05, np.nan])[None, None, None]
    np.testing.assert_allclose(metrics.sink_mass(one), [90.0, 0.0, 0.0, np.nan])
    np.testing.assert_allclose(metrics.sink_mass(2 * one), [90.0, 10.0, 0.0, np.nan])  # no head gives more than all
    with pytest.raises(InputError, match="epsilon"):
        metrics.sink_mass(one, 0.0)


def test_a_layer_counts_once_in_a_mass_however_many_heads_it_has() -> None:
    alpha = np.full((1, 2, 2, 4), 0.6)
    alpha[0, 1] = 0.0
    alpha[0, 0, 1] = np.nan
    np.testing.assert_allclose(metrics.sink_mass(alpha), [25.0] * 4)


def test_the_step_of_uniform_attention_and_of_a_planted_head() -> None:
    tokens = 64
    uniform = received(torch.ones(2, 1, 2, tokens, tokens).tril() / torch.arange(1, tokens + 1)[:, None]).numpy()
    assert metrics.step(uniform)[0] == pytest.approx(1.395, abs=0.001)
    assert metrics.step(uniform)[10] == pytest.approx(1.0, abs=0.1)
    assert np.isnan(metrics.step(uniform)[-3:]).all()
    planted = np.full((2, 1, 2, 8), 0.1)
    planted[:, 0, 1, 2] = 0.7
    assert metrics.step(planted)[2] == pytest.approx(4.0)
    assert np.isnan(metrics.step(np.zeros((1, 1, 1, 8)))).all()
