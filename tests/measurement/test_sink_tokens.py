"""Measuring models with learned tokens in front, and bidirectional ones: positions, denominators, every observer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.interventions import ForbidSink
from sinkscope.measurement import AttentionReceived, measure, observe
from tests.measurement.conftest import lab_model

SINKS = 2


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 97, (3, 11))


def expected(model: torch.nn.Module, ids: torch.Tensor) -> np.ndarray:
    """alpha from the maps that the model returns on request."""
    with torch.no_grad():
        maps = torch.stack(model(ids, output_attentions=True).attentions, 1).double()
    return (maps.sum(-2) / (maps > 0).any(2, keepdim=True).sum(-2)).numpy()


def received(*args: object, **options: object) -> np.ndarray:
    return measure(*args, **options).data["attention_received"].values


@pytest.mark.parametrize("attention", ["softmax", "k_bias", "softmax_off_by_one"])
@pytest.mark.parametrize("position", ["rotary", "alibi", "learned"])
def test_sink_tokens_are_the_first_positions(attention, position, ids):
    model = lab_model(attention, sink_tokens=SINKS, position=position)
    alpha = expected(model, ids)
    assert alpha.shape[-1] == 11 + SINKS
    np.testing.assert_allclose(received(model, ids), alpha, atol=1e-5)
    some = received(model, ids, [AttentionReceived("first:3")])
    np.testing.assert_allclose(some, alpha[..., :3], atol=1e-5)


@pytest.mark.parametrize("mask", [zoo.Causal() & zoo.Window(4), zoo.Causal() | zoo.VisiblePrefix(3)])
def test_under_a_mask_of_the_text(mask, ids):
    model = lab_model(zoo.AttentionSpec(mask=mask), sink_tokens=SINKS)
    np.testing.assert_allclose(received(model, ids), expected(model, ids), atol=1e-5)


@pytest.mark.parametrize("is_causal", [True, False])
def test_every_observer_counts_them(is_causal, ids):
    model = lab_model("softmax", sink_tokens=SINKS, is_causal=is_causal)
    found = measure(model, ids, "all").data
    assert found.sizes["position"] == 11 + SINKS
    assert (found["tokens"] == 11 + SINKS).all()
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states[1].norm(dim=-1)
    np.testing.assert_allclose(found["hidden_norm"].sel(depth=1).values, hidden, rtol=1e-5)
    front = np.full((3, SINKS), -1)
    assert np.array_equal(found["token_id"].values, np.concatenate([front, ids.numpy()], 1))


def test_the_record_says_what_stands_where(ids):
    model = lab_model("softmax", sink_tokens=SINKS)
    ids[:, 0] = 7
    found = measure(model, ids).record
    assert found["sink_tokens"] == SINKS
    assert found["input"]["position_0"] == "a learned sink token"
    assert found["input"]["position_2"] == {"token_ids": [7], "distinct": 1}
    assert found["input"]["sha256"] == measure(lab_model("softmax"), ids).record["input"]["sha256"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_stands_nowhere(side, ids, assert_same):
    model = lab_model("softmax", sink_tokens=SINKS)
    nothing = torch.zeros(3, 4, dtype=torch.long)
    padded = torch.cat([nothing, ids] if side == "left" else [ids, nothing], 1)
    found = measure(model, {"input_ids": padded, "attention_mask": (padded > 0).long()})
    alone = measure(model, ids)
    assert_same(found, alone)
    assert np.array_equal(found.data["token_id"].values[:, : 11 + SINKS], alone.data["token_id"].values)
    assert found.record["input"]["position_2"] == alone.record["input"]["position_2"]
    assert np.isnan(found.data["attention_received"].values[..., 11 + SINKS :]).all()


def test_decoding_is_one_sample(ids, assert_same):
    model = lab_model("softmax", sink_tokens=SINKS)
    with torch.no_grad(), observe(model, AttentionReceived()) as seen:
        cache = model(ids[:, :6]).past_key_values
        for at in range(6, 11):
            model(ids[:, at : at + 1], past_key_values=cache)
    assert_same(seen.measurement(), measure(model, ids, [AttentionReceived()]))


@pytest.mark.parametrize("mask", [zoo.Causal(), zoo.Causal() & zoo.Window(4)])
def test_interventions_name_positions_as_measurements_do(mask, ids):
    """Forbidding position 0 takes away the first sink token, from all but itself."""
    model = lab_model(zoo.AttentionSpec(mask=mask), sink_tokens=SINKS)
    before = received(model, ids)[..., 0]
    with ForbidSink((0,)).applied(model):
        after = received(model, ids)[..., 0]
    np.testing.assert_allclose(after, 1, rtol=1e-5)  # its own query alone sees it
    assert (before > 0.1).any()


@pytest.mark.parametrize("sinks", [0, SINKS])
@pytest.mark.parametrize("attention", ["softmax", "k_bias"])
def test_bidirectional_models_divide_by_all_queries(attention, sinks, ids):
    model = lab_model(attention, is_causal=False, sink_tokens=sinks, position="relative_t5")
    found = measure(model, ids)
    np.testing.assert_allclose(found.data["attention_received"].values, expected(model, ids), atol=1e-5)
    assert set(found.data["stack"].values) == {"encoder"}
