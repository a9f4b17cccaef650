"""Effects beside their controls, on models whose truth is known."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn import functional as F

import sinkscope as ss
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import (
    Effect,
    ForbidSink,
    Outcome,
    RemoveContribution,
    SetActivations,
    SwapPositions,
    ZeroHeads,
    effect,
    largest_activations,
    onset_depth,
    sink_heads,
)
from sinkscope.interventions.named import NAMED, Subject, named
from sinkscope.probes import AttentionReceived, HiddenNorms, measure
from tests.families.registry import FAMILIES
from tests.interventions.conftest import a_model, inputs_of, logits
from tests.planted.factory import F3, NULL, Plant, null_model, planted_ids, planted_model
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


def test_zeroing_the_massive_activation_kills_the_sink_and_the_control_does_not(planted, ids):
    found = effect(planted, ids, SetActivations((ENTRY,)), controls=3)
    assert found.baseline.sink_rate == pytest.approx(100 * len(F3.attending(4, 4)) / 16)
    assert found.intervened.sink_rate == 0
    assert all(control.sink_rate == found.baseline.sink_rate for control in found.controls)
    assert found.stands_out("sink_rate")
    assert "stands out above the 3 random controls" in found.verdict


def test_setting_it_to_its_mean_changes_nothing(planted, ids):
    intervention = SetActivations.at_mean(planted, ids, (ENTRY,))
    assert intervention.means == pytest.approx((1000,), rel=1e-3)
    before = logits(planted, input_ids=ids)
    with intervention.applied(planted):
        torch.testing.assert_close(logits(planted, input_ids=ids), before, rtol=0, atol=1e-4)
    assert not effect(planted, ids, intervention, controls=2).stands_out("sink_rate")


def test_removing_the_onset_kills_the_sink(planted, ids):
    found = effect(planted, ids, RemoveContribution(F3.onset, (0,)), controls=3)
    assert (found.intervened.sink_rate, found.controls[0].sink_rate) == (0, found.baseline.sink_rate)


def test_the_sink_follows_its_position_embedding():
    model, ids = planted_gpt2(F3), planted_ids(F3)
    swap = SwapPositions(0, 9)
    with swap.applied(model):
        measured = measure(model, ids, [AttentionReceived()])
    before = measure(model, ids, [AttentionReceived()])
    assert before.sink_rate(position=0) > 50 > before.sink_rate(position=9)
    assert measured.sink_rate(position=9) == before.sink_rate(position=0) > measured.sink_rate(position=0)
    assert effect(model, ids, swap, controls=3).stands_out("sink_rate")


@pytest.mark.parametrize(
    "intervention",
    [SetActivations((ENTRY,)), RemoveContribution(1, (0,)), ForbidSink((0,)), ZeroHeads(((1, 0), (2, 3)))],
    ids=lambda value: type(value).__name__,
)
def test_on_the_null_model_nothing_stands_out(intervention):
    model, ids = null_model(), planted_ids(Plant(sinks=()), samples=8)
    found = effect(model, ids, intervention, controls=6)
    assert not found.stands_out("sink_rate")
    assert not found.stands_out("loss")


def test_loss_and_divergence_are_those_written_out_here():
    model, inputs = a_model("llama"), inputs_of("llama")
    real = torch.ones(3, 24, dtype=torch.long)
    real[1, 20:] = 0
    given = {**inputs, "attention_mask": real}
    intervention = ZeroHeads(((0, 1),))
    found = effect(model, given, intervention, controls=1, batch_size=2)
    before = logits(model, **given)
    with intervention.applied(model):
        after = logits(model, **given)
    for outcome, scores in ((found.baseline, before), (found.intervened, after)):
        targets = inputs["input_ids"][:, 1:].masked_fill(real[:, 1:] == 0, -100)
        loss = F.cross_entropy(scores[:, :-1].transpose(1, 2), targets, ignore_index=-100)
        assert outcome.loss == pytest.approx(loss.item(), rel=1e-5)
    p, q = before.softmax(-1), after.softmax(-1)
    divergence = (p * (p / q).log()).sum(-1)[real.bool()].mean().item()
    assert found.intervened.kl == pytest.approx(divergence, rel=1e-3)
    assert found.baseline.kl == 0


def test_encoders_have_a_divergence_and_no_loss():
    found = effect(a_model("bert"), inputs_of("bert"), ForbidSink((0,)), controls=2)
    assert found.intervened.loss is None
    assert list(found.table()["metric"]) == ["KL to the baseline (nats)", "sink rate (%)"]
    assert "Loss" not in found.verdict
    assert len(found.plot().data) == 6


def test_bad_input_is_one_clear_line():
    model, inputs = a_model("llama"), inputs_of("llama")
    for options, match in [
        ({"controls": 0}, "nothing without a control"),
        ({"position": 24}, "position 24 is in no row: rows have positions 0 to 23"),
        ({"epsilon": 1.5}, "epsilon"),
    ]:
        with pytest.raises(InputError, match=match):
            effect(model, inputs, ForbidSink((0,)), **options)
    with pytest.raises(InputError, match="position 30 is in no row"):
        effect(model, inputs, ForbidSink((30,)))
    with pytest.raises(InputError, match="no control: it needs 23 other positions, and there are 1"):
        effect(model, inputs, RemoveContribution(1, range(23)))
    with pytest.raises(UnsupportedModelError, match=r"family 'vit'.*no logits"):
        effect(a_model("vit"), FAMILIES["vit"].inputs(), ForbidSink((0,)))


OUTCOME = Outcome(1.0, 0.1, 50.0)


def effect_of(intervened: Outcome, *controls: Outcome) -> Effect:
    return Effect(
        "m", OUTCOME, intervened, controls, ({"name": "It"}, *({"name": "It"} for _ in controls)), 0, 0.3, 4, 9
    )


def test_an_effect_without_a_control_does_not_exist():
    with pytest.raises(InputError, match="nothing without a control"):
        effect_of(OUTCOME)


def test_what_stands_out():
    controls = [Outcome(1.0 + 0.01 * n, 0.1, 50.0) for n in range(5)]
    assert effect_of(Outcome(1.2, 0.1, 50.0), *controls).stands_out("loss")
    assert not effect_of(Outcome(1.05, 0.1, 50.0), *controls).stands_out(
        "loss"
    )  # outside the range, within their spread
    assert not effect_of(Outcome(1.02, 0.1, 50.5), *controls).stands_out("sink_rate")  # half a point is no difference
    assert effect_of(Outcome(1.02, 0.1, 20.0), *controls).stands_out("sink_rate")
    assert not effect_of(Outcome(math.nan, 0.1, 20.0), *controls).stands_out("loss")


def test_an_effect_as_table_json_and_figure():
    found = effect_of(Outcome(2.0, 0.5, 0.0), *[Outcome(1.0 + 0.01 * n, 0.1, 50.0) for n in range(3)])
    row = found.table().set_index("metric").loc["loss (nats)"]
    assert (row.baseline, row.intervened, row.control_low, row.control_high) == (1.0, 2.0, 1.0, 1.02)
    assert bool(row.stands_out)
    data = json.loads(json.dumps(found.to_json()))
    assert data["stands_out"] == {"loss": True, "kl": True, "sink_rate": True}
    assert len(data["controls"]) == 3
    assert "Loss: 1.0000 → 2.0000 nats, stands out above the 3 random controls (1.0000 to 1.0200)." in data["verdict"]
    assert len(found.plot().data) == 9


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


def test_the_public_names():
    assert ss.effect is effect
    assert ss.interventions.ForbidSink is ForbidSink


@pytest.mark.parametrize(
    ("intervened", "controls", "standing", "words"),
    [
        (2.0, (1.0, 1.01, 1.02), "above", "stands out above the 3 random controls"),
        (0.5, (1.0, 1.01, 1.02), "below", "stands out below the 3 random controls"),
        (1.01, (1.0, 1.01, 1.02), "within", "lies within the 3 random controls"),
        (1.03, (1.0, 1.01, 1.02), "undecided", "cannot be told from the 3 random controls"),
        (2.0, (1.0,), "undecided", "cannot be told from the 1 random control"),
    ],
)
def test_the_verdict_says_on_which_side(intervened, controls, standing, words) -> None:
    found = Effect(
        model="tiny",
        baseline=Outcome(1.0, 0.0, 50.0),
        intervened=Outcome(intervened, 0.0, 50.0),
        controls=tuple(Outcome(loss, 0.0, 50.0) for loss in controls),
        interventions=({"name": "ZeroHeads"}, *({"name": "ZeroHeads"} for _ in controls)),
        position=0,
        epsilon=0.3,
        samples=4,
        tokens=8,
    )
    assert found.standing("loss") == standing
    assert found.stands_out("loss") == (standing in ("above", "below"))
    assert words in found.verdict


def test_the_band_of_the_controls_is_drawn() -> None:
    found = effect(null_model(), planted_ids(NULL, samples=2), ZeroHeads([(1, 0)]), controls=3)
    bands = found.plot().layout.shapes
    assert len(bands) == 3
    losses = [control.loss for control in found.controls]
    assert (bands[0].y0, bands[0].y1) == (min(losses), max(losses))
