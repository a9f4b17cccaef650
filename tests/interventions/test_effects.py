"""Interventions against their controls, on models whose truth is known."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import (
    ForbidSink,
    RemoveContribution,
    SetActivations,
    SwapPositions,
    ZeroHeads,
    largest_activations,
    onset_depth,
    sink_heads,
)
from sinkscope.interventions.named import NAMED, Subject, named
from sinkscope.measurement import AttentionReceived, HiddenNorms, measure
from sinkscope.trials import Trial, changed
from tests.families.registry import FAMILIES
from tests.interventions.conftest import a_model, inputs_of, logits
from tests.planted.factory import F3, Plant, null_model, planted_ids, planted_model
from tests.planted.families import planted_gpt2

ENTRY = (F3.onset, 0, F3.dimension)


@pytest.fixture(scope="module")
def planted():
    return planted_model(F3)


@pytest.fixture(scope="module")
def ids():
    return planted_ids(F3)


def test_the_planted_entry_heads_and_onset_are_found(planted, ids):
    first = largest_activations(planted, ids)[0]
    assert first.entry == ENTRY
    assert first.is_massive()
    measured = measure(planted, ids, [AttentionReceived(positions=[0]), HiddenNorms()])
    assert set(sink_heads(planted, measured)) == set(F3.attending(4, 4))
    assert onset_depth(planted, measured) == F3.onset
    other = Plant(sinks=(7,), onset=2)
    assert largest_activations(planted_model(other), planted_ids(other))[0].entry == (2, 7, other.dimension)


def rates(trial: Trial) -> tuple[float, float]:
    """The sink rate of the old place, in the unchanged model and under the change."""
    places = trial.record["sink"]["afterwards"]
    return places["full"]["rate_of_old"], places[trial.named("arm")[0]]["rate_of_old"]


def test_zeroing_the_massive_activation_kills_the_sink_and_costs_more_than_its_controls(planted, ids):
    trial = changed(planted, ids, SetActivations((ENTRY,)), controls=3)
    assert rates(trial) == (pytest.approx(100 * len(F3.attending(4, 4)) / 16), 0)
    assert trial.difference("SetActivations").low > 0
    assert "SetActivations costs" in trial.verdict


def test_setting_it_to_its_mean_changes_nothing(planted, ids):
    intervention = SetActivations.at_mean(planted, ids, (ENTRY,))
    assert intervention.means == pytest.approx((1000,), rel=1e-3)
    before = logits(planted, input_ids=ids)
    with intervention.applied(planted):
        torch.testing.assert_close(logits(planted, input_ids=ids), before, rtol=0, atol=1e-4)
    trial = changed(planted, ids, intervention, controls=2)
    assert rates(trial)[0] == rates(trial)[1]
    assert trial.cost("SetActivations").high < 1e-4


def test_removing_the_onset_kills_the_sink(planted, ids):
    before, after = rates(changed(planted, ids, RemoveContribution(F3.onset, (0,)), controls=3))
    assert before > 0
    assert after == 0


def test_the_sink_follows_its_position_embedding():
    model, ids = planted_gpt2(F3), planted_ids(F3)
    swap = SwapPositions(0, 9)
    with swap.applied(model):
        measured = measure(model, ids, [AttentionReceived()])
    before = measure(model, ids, [AttentionReceived()])
    assert before.sink_rate(position=0) > 50 > before.sink_rate(position=9)
    assert measured.sink_rate(position=9) == before.sink_rate(position=0) > measured.sink_rate(position=0)
    trial = changed(model, ids, swap, controls=3)
    assert trial.record["sink"]["afterwards"]["SwapPositions"]["position"] == 9


@pytest.mark.parametrize(
    "intervention",
    [SetActivations((ENTRY,)), RemoveContribution(1, (0,)), ForbidSink((0,)), ZeroHeads(((1, 0), (2, 3)))],
    ids=lambda value: type(value).__name__,
)
def test_on_the_null_model_nothing_stands_out(intervention):
    model, ids = null_model(), planted_ids(Plant(sinks=()), samples=8)
    more = changed(model, ids, intervention, controls=6).difference(type(intervention).__name__, score="nats")
    assert not more.low > 1e-3


def test_loss_and_divergence_are_those_written_out_here():
    model, inputs = a_model("llama"), inputs_of("llama")
    real = torch.ones(3, 24, dtype=torch.long)
    real[1, 20:] = 0
    given = {**inputs, "attention_mask": real}
    intervention = ZeroHeads(((0, 1),))
    trial = changed(model, given, intervention, controls=1, batch_size=2)
    before = logits(model, **given)
    with intervention.applied(model):
        after = logits(model, **given)
    for name, scores in (("full", before), ("ZeroHeads", after)):
        targets = inputs["input_ids"][:, 1:].masked_fill(real[:, 1:] == 0, -100)
        loss = [
            F.cross_entropy(one[:-1], target, ignore_index=-100) for one, target in zip(scores, targets, strict=True)
        ]
        assert trial.values(name, "nats") == pytest.approx(torch.stack(loss).numpy(), rel=1e-5)
    p, q = before.softmax(-1), after.softmax(-1)
    each = (p * (p / q).log()).sum(-1)
    predicting = torch.ones(3, 24, dtype=torch.bool)
    predicting[1, 19:] = predicting[:, 23] = False
    for row in range(3):
        assert trial.values("ZeroHeads")[row] == pytest.approx(each[row, predicting[row]].mean().item(), rel=1e-3)
    assert not trial.values("full").any()


def test_encoders_have_a_divergence_and_no_loss():
    trial = changed(a_model("bert"), inputs_of("bert"), ForbidSink((0,)), controls=2)
    assert trial.data["nats"].isnull().all()
    assert "loss" not in trial.verdict
    assert "ForbidSink costs" in trial.verdict


def test_bad_input_is_one_clear_line():
    model, inputs = a_model("llama"), inputs_of("llama")
    for options, match in [
        ({"position": 24}, "position 24 is in no row: rows have positions 0 to 23"),
        ({"epsilon": 1.5}, "epsilon"),
    ]:
        with pytest.raises(InputError, match=match):
            changed(model, inputs, ForbidSink((0,)), **options)
    with pytest.raises(InputError, match="position 30 is in no row"):
        changed(model, inputs, ForbidSink((30,)))
    with pytest.raises(InputError, match="no control: it needs 23 other positions, and there are 1"):
        changed(model, inputs, RemoveContribution(1, range(23)))
    with pytest.raises(UnsupportedModelError, match=r"family 'vit'.*no logits"):
        changed(a_model("vit"), FAMILIES["vit"].inputs(), ForbidSink((0,)))


@pytest.mark.parametrize("what", NAMED)
def test_interventions_by_name(what, planted, ids):
    model = planted_gpt2(F3) if "position" in what else planted
    chosen = named(what, Subject(model, ids, other=9))
    assert chosen.remark
    with chosen.intervention.applied(model):
        logits(model, input_ids=ids)


def test_names_that_do_not_exist_and_models_without_a_sink(ids):
    model = null_model()
    with pytest.raises(InputError, match="unknown intervention 'zero-masive': did you mean 'zero-massive'"):
        named("zero-masive", Subject(model, ids))
    with pytest.raises(InputError, match=r"no head gives position 0 more than 0.3 of its attention: the most is"):
        named("zero-sink-heads", Subject(model, ids))
    assert "no activation exceeds 100" in named("zero-massive", Subject(model, ids)).remark
