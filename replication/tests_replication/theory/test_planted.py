"""Planted errors: a check that could not say no would be worth nothing."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from sinkscope.attention import AttentionSpec, Full
from sinkscope.interventions import ReplacePosition
from sinkscope_replication.theory import (
    CHECKS,
    entropy,
    mixing,
    positions,
    recurrence,
    repeated,
    scaling,
    sensitivity,
    slots,
)
from sinkscope_replication.theory import closed_forms as closed
from sinkscope_replication.theory.subjects import lab

BY_NAME = {check.claim.name: check for check in CHECKS}


class Negated:
    """A position bias with the other sign."""

    def __init__(self, bias):
        self.bias = bias

    def rows(self, rows):
        return -self.bias.rows(rows)


def wrong_sign(**options):
    model = lab(**options)
    bias = model.model.position.bias
    model.model.position.bias = lambda places: Negated(bias(places))
    return model


def instead(**others):
    """A builder that overrules what a check asks for."""
    return lambda **options: lab(**{**options, **others})


leaking = instead(is_causal=False)
learned = instead(position="learned")
softmax = instead(attention="softmax")
off_by_one = instead(attention="softmax_off_by_one")


def sgd_with(power):
    return partial(
        scaling.trainings_stay_equal, scaling.sgd, lambda alpha: {**scaling.sgd_rule(alpha), "lr": 0.5 * alpha**power}
    )


def sgd_without_decay(alpha):
    return {"lr": scaling.sgd_rule(alpha)["lr"]}


def adamw_without(name):
    def rule(alpha):
        return {key: value for key, value in scaling.adamw_rule(alpha).items() if key != name}

    return partial(scaling.trainings_stay_equal, scaling.adamw, rule)


PLANTED = [
    ("ALiBi", partial(repeated.weights_follow, "alibi", wrong_sign)),
    ("ALiBi: no sink at T = 64", partial(repeated.sink_rate_is, {64: 0.0}, "alibi", wrong_sign)),
    ("the paper's relative positions", partial(repeated.weights_follow, "relative_paper", wrong_sign)),
    ("relative: the sink rate", partial(repeated.sink_rate_is, {64: 100.0}, "relative_paper", wrong_sign)),
    ("relative: the sign decides", partial(repeated.minus_bucket, build=wrong_sign)),
    ("relative T5", partial(repeated.weights_follow, "relative_t5", wrong_sign)),
    ("relative, measured", partial(repeated.received_follows, "relative_paper", wrong_sign)),
    ("no positions", partial(repeated.weights_follow, "none", leaking)),
    ("no positions", partial(repeated.weights_follow, "none", learned)),
    ("no positions, measured", partial(repeated.received_follows, "none", instead(position="alibi"))),
    ("equal tokens stay equal", partial(repeated.hidden_stay_equal, learned)),
    ("absolute positions part equal tokens", partial(repeated.hidden_stay_equal, instead(position="none"))),
    ("rotary", partial(repeated.weights_follow, "rotary", instead(rope_theta=100.0))),
    ("rotary: the bound", partial(repeated.rotary_within_bound, instead(position="relative_paper"))),
    ("no sink as the context grows", partial(repeated.vanishing, wrong_sign, ["alibi"])),
    ("a common shift", partial(positions.shift_changes, learned)),
    ("a common shift under absolute positions", partial(positions.shift_changes, instead(position="rotary"))),
    ("the past does not see the future", partial(positions.future_is_unseen, leaking)),
    ("α·softmax scales W_O", partial(scaling.is_scaling, softmax)),
    ("α under SGD", sgd_with(1)),
    ("α under SGD", sgd_with(0)),
    ("α under SGD", partial(scaling.trainings_stay_equal, scaling.sgd, sgd_without_decay)),
    *(("α under AdamW", adamw_without(name)) for name in ("lr", "eps", "weight_decay")),
    ("the p-normalizer", partial(scaling.power_is_normalizer, softmax)),
    ("rows of the p-normalizer", partial(scaling.power_rows_in_range, off_by_one)),
    ("linear attention", partial(recurrence.recurrence_agrees, softmax)),
    ("a zero sink", partial(slots.zero_key_agrees, softmax)),
    ("an open slot", partial(slots.open_slots_differ, softmax)),
    ("a sink slows it in a lab model", partial(mixing.sink_slows_the_lab_model, softmax)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "evidence"), PLANTED, ids=[f"{name} {i}" for i, (name, _) in enumerate(PLANTED)])
def test_a_planted_error_is_refuted(name, evidence):
    verdict = replace(BY_NAME[name], evidence=evidence).run()
    assert verdict.grade == "not seen"
    assert verdict.reason or verdict.claim.rule.kind == "seeds_above"


@pytest.mark.parametrize("name", ["swapped positions", "swapped under ordinary tokens"])
def test_a_swap_that_replaces_is_refuted(name, monkeypatch):
    monkeypatch.setattr(positions, "SwapPositions", ReplacePosition)
    assert BY_NAME[name].run().grade == "not seen"


def test_a_replacement_that_swaps_is_refuted(monkeypatch):
    monkeypatch.setattr(positions, "ReplacePosition", positions.SwapPositions)
    assert BY_NAME["a replaced position"].run().grade == "not seen"


def test_a_table_that_is_not_put_back_is_refuted(monkeypatch):
    def forgetful(model, ids, change):
        change.attach(model, ExitStack())

    monkeypatch.setattr(positions, "changed", forgetful)
    assert BY_NAME["positions come back"].run().grade == "not seen"


def test_a_bucket_too_wide_is_refuted(monkeypatch):
    monkeypatch.setattr(closed, "bucket", lambda distance: min(distance, 31))
    assert BY_NAME["relative T5"].run().grade == "not seen"


def test_a_bound_that_is_too_high_is_refuted(monkeypatch):
    bound = closed.least_entropy
    monkeypatch.setattr(closed, "least_entropy", lambda spread, count: bound(spread, count) + 1e-4)
    for name in ("no row falls below the bound", "the bound is attained", "entropy as measured"):
        assert BY_NAME[name].run().grade == "not seen", name


def test_a_measured_entropy_that_is_too_low_is_refuted(monkeypatch):
    def lower(*arguments):
        data = measure(*arguments).data
        return SimpleNamespace(data=data.assign(attention_entropy=data["attention_entropy"] - 10))

    measure = entropy.measure
    monkeypatch.setattr(entropy, "measure", lower)
    assert BY_NAME["no measured head falls below the bound"].run().grade == "not seen"


def test_slots_that_are_not_quite_zero_are_refuted(monkeypatch):
    fill = slots.fill_slots
    monkeypatch.setattr(slots, "fill_slots", lambda model, value: fill(model, value + 0.01))
    for name in ("slots of zeros are one", "low-dimensional keys"):
        assert BY_NAME[name].run().grade == "not seen", name
    monkeypatch.setattr(slots, "fill_slots", lambda model, value: fill(model, -3.0))
    assert BY_NAME["a closed slot"].run().grade == "not seen"


def test_a_value_of_another_length_is_refuted(monkeypatch):
    monkeypatch.setattr(slots, "slot_value", lambda model, value=slots.slot_value: 1.001 * value(model))
    assert BY_NAME["fixed values"].run().grade == "not seen"


def test_averages_that_see_the_future_are_refuted(monkeypatch):
    monkeypatch.setattr(mixing, "SOFTMAX", AttentionSpec(mask=Full()))
    monkeypatch.setattr(mixing, "SELF_ALONE", AttentionSpec())
    for name in ("rank collapse in numbers", "self-attention alone"):
        assert BY_NAME[name].run().grade == "not seen", name


@pytest.mark.slow
def test_a_sink_that_takes_nothing_is_refuted(monkeypatch):
    no_sink = mixing.sink(-30.0)
    for room in (mixing, sensitivity):
        monkeypatch.setattr(room, "sink", lambda logit: no_sink)
    for name in (
        "a full sink",
        "a sink slows the collapse",
        "a sink slows it in a lab model",
        "a sink lowers sensitivity",
    ):
        verdict = BY_NAME[name].run()
        assert (verdict.grade == "not seen") == (name != "a sink slows it in a lab model"), name


def test_a_bound_without_the_residual_stream_is_refuted(monkeypatch):
    def without(layers):
        product = torch.eye(layers[0].shape[-1], dtype=torch.float64)
        for weights in layers:
            product = weights.abs().sum(0) @ product
        return product

    monkeypatch.setattr(closed, "path_weights", without)
    assert BY_NAME["sensitivity, weights fixed"].run().grade == "not seen"


@pytest.mark.slow
def test_a_bound_that_forgets_the_moving_weights_is_refuted():
    """Sharp scores: there the constant of fixed weights is not enough for the whole Jacobian."""
    sharp = [replace(layer, query=9 * layer.query) for layer in sensitivity.network(0)]
    check = BY_NAME["sensitivity"]
    assert replace(check, evidence=lambda: sensitivity.oversteps(False, sharp)).run().grade == "confirmed"
    fixed = [Fixed(**vars(layer)) for layer in sharp]
    assert replace(check, evidence=lambda: sensitivity.oversteps(False, fixed)).run().grade == "not seen"


class Fixed(sensitivity.Layer):
    """A layer that gives the constant of fixed weights, whatever was asked."""

    def constant(self, vectors, frozen=False):
        return super().constant(vectors, True)


def test_a_network_that_sees_the_future_is_refuted(monkeypatch):
    network = sensitivity.network
    monkeypatch.setattr(sensitivity, "network", lambda seed: network(seed, AttentionSpec(mask=Full())))
    assert BY_NAME["no token moves an earlier one"].run().grade == "not seen"
