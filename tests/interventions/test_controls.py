"""Controls are matched to their intervention: the same budget, the same depth, the same kind, elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.interventions import (
    FirstTokenView,
    ForbidSink,
    RemoveContribution,
    SetActivations,
    SuppressBands,
    ZeroHeads,
)
from sinkscope.interventions.finding import largest_activations, onset_depth, sink_heads
from sinkscope.interventions.named import Subject, named
from sinkscope.interventions.positions import ReplacePosition, SwapPositions
from sinkscope.measurement import AttentionReceived, HiddenNorms, Measurement, measure
from sinkscope.trials import changed
from tests.interventions.conftest import a_model, inputs_of, logits
from tests.planted.factory import F3, planted_ids, planted_model
from tests.planted.families import planted_gpt2

SEEDS = range(12)


@pytest.fixture(scope="module")
def llama():
    return a_model("llama")


def controls_of(intervention, model):
    return [intervention.control(torch.Generator().manual_seed(seed), model, inputs_of("llama")) for seed in SEEDS]


def test_entries_stay_at_their_depth_with_other_dimensions(llama):
    entries = ((2, 0, 5), (2, 3, 7), (1, 0, 9))
    for control in controls_of(SetActivations(entries), llama):
        assert [depth for depth, _, _ in control.entries] == [2, 2, 1]
        assert {dim for _, _, dim in control.entries}.isdisjoint({5, 7, 9})
        assert control.value == "zero"


def test_entries_move_to_positions_that_were_not_named(llama):
    length = inputs_of("llama")["input_ids"].shape[1]
    named_but_one = [(1, position, position % 3) for position in range(length) if position != 7]
    for control in controls_of(SetActivations(named_but_one), llama):
        assert {position for _, position, _ in control.entries} == {7}


def test_means_are_controlled_by_means_of_the_controls_own_entries(llama):
    chosen = SetActivations.at_mean(llama, inputs_of("llama"), ((2, 0, 5),))
    for control in controls_of(chosen, llama):
        assert control.value == "mean"
        again = SetActivations.at_mean(llama, inputs_of("llama"), control.entries)
        assert control.means == pytest.approx(again.means)


def test_contributions_are_removed_at_the_same_depth(llama):
    for control in controls_of(RemoveContribution(2, (0,)), llama):
        assert control.depth == 2
        assert 0 not in control.positions


def test_heads_are_zeroed_for_the_same_queries(llama):
    for control in controls_of(ZeroHeads(((0, 1), (1, 2)), (3, 4)), llama):
        assert control.positions == (3, 4)
        assert set(control.heads).isdisjoint({(0, 1), (1, 2)})


def test_keys_that_are_hidden_instead_can_be_seen_by_half_of_the_queries(llama):
    hidden = {position for control in controls_of(ForbidSink((0,)), llama) for position in control.positions}
    assert hidden <= set(range(1, 12))
    assert len(hidden) > 3


def test_a_first_tokens_view_is_given_to_another_than_the_first(llama):
    views = {control.position for control in controls_of(FirstTokenView(1), llama)}
    assert not views & {0, 1}


def test_random_directions_take_the_place_of_bands(llama):
    chosen = SuppressBands((3, 4), protect=(0, 2))
    bands = chosen._directions(llama)
    for control in controls_of(chosen, llama)[:3]:
        assert (control.bands, control.protect, control.depths) == (chosen.bands, (0, 2), None)
        drawn = control._directions(llama)
        assert drawn.shape == bands.shape
        torch.testing.assert_close(drawn.mT @ drawn, torch.eye(drawn.shape[1]), rtol=0, atol=1e-5)
        overlap = (bands.mT @ drawn).square().sum() / bands.shape[1]
        assert overlap < 0.6, "a random subspace, not the bands"


def test_names_of_before_are_read() -> None:
    with pytest.warns(DeprecationWarning, match="spared= is now protect="):
        assert SuppressBands((3,), spared=(0, 2)) == SuppressBands((3,), protect=(0, 2))
    with pytest.warns(DeprecationWarning, match="spare_sink= is now protect_sink="):
        assert Subject(None, None, spare_sink=False).protect_sink is False


def test_bands_are_suppressed_at_the_last_depth_too(llama):
    model, ids = llama, inputs_of("llama")
    everywhere = SuppressBands((0, 1, 2), protect=())
    last = len(model.model.layers)
    with everywhere.applied(model):
        all_depths = logits(model, **ids)
    with SuppressBands((0, 1, 2), protect=(), depths=range(1, last)).applied(model):
        without_last = logits(model, **ids)
    assert not torch.allclose(all_depths, without_last)


def test_divergence_is_of_the_baseline_from_the_intervened_model():
    model, inputs = a_model("llama"), inputs_of("llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(60)  # a large change, at which the two directions differ
    intervention = ZeroHeads([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)][:3])
    trial = changed(model, inputs, intervention, controls=1)
    before = logits(model, **inputs)
    with intervention.applied(model):
        after = logits(model, **inputs)
    p, q = before[:, :-1].double().log_softmax(-1), after[:, :-1].double().log_softmax(-1)
    forward, backward = ((a.exp() * (a - b)).sum(-1).mean().item() for a, b in ((p, q), (q, p)))
    assert abs(forward - backward) > 0.05 * forward
    assert trial.cost("ZeroHeads").value == pytest.approx(forward, rel=1e-3)


def test_padding_on_the_left_predicts_nothing():
    model, inputs = a_model("llama"), inputs_of("llama")
    mask = torch.ones(3, 24, dtype=torch.long)
    mask[0, :9] = 0
    trial = changed(model, {**inputs, "attention_mask": mask}, ZeroHeads([(0, 1)]), controls=1)
    log_p = logits(model, **inputs, attention_mask=mask).log_softmax(-1)[:, :-1]
    for row in range(3):
        wanted = [
            -log_p[row, position, inputs["input_ids"][row, position + 1]]
            for position in range(23)
            if mask[row, position] and mask[row, position + 1]
        ]
        assert trial.values("full", "nats")[row] == pytest.approx(torch.stack(wanted).mean().item(), rel=1e-5)


def test_names_stand_for_what_they_say():
    model, ids = planted_model(F3), planted_ids(F3)
    question = Subject(model, ids, position=0, other=9, bands=(4,))
    acts = {what: named(what, question).intervention for what in ("zero-massive", "first-view")}
    assert acts["zero-massive"].entries == ((1, 0, F3.dimension),)
    assert acts["first-view"] == FirstTokenView(9)
    assert named("first-view", question).position == 9
    assert named("remove-onset", question).intervention == RemoveContribution(1, (0,))
    assert set(named("zero-sink-heads", question).intervention.heads) == set(F3.attending(4, 4))
    assert named("suppress-bands", question).intervention == SuppressBands((4,), (0,))
    everywhere = Subject(model, ids, bands=(4,), protect_sink=False)
    assert named("suppress-bands", everywhere).intervention == SuppressBands((4,), ())
    learned = Subject(planted_gpt2(F3), ids, position=0, other=9)
    assert named("swap-position", learned).intervention == SwapPositions(0, 9)
    assert named("replace-position", learned).intervention == ReplacePosition(0, 9)


def test_what_is_found_counts_real_tokens():
    model, ids = planted_model(F3), planted_ids(F3)
    padded = torch.cat([torch.zeros(len(ids), 6, dtype=torch.long), ids], 1)
    inputs = {"input_ids": padded, "attention_mask": (torch.arange(padded.shape[1]) >= 6).long().repeat(len(ids), 1)}
    [found] = largest_activations(model, inputs, 1)
    assert found.entry == (1, 0, F3.dimension)
    assert found.magnitude == pytest.approx(1000, rel=0.01)
    assert found.is_massive()
    assert set(sink_heads(model, measure(model, inputs, [AttentionReceived()]))) == set(F3.attending(4, 4))
    assert onset_depth(model, measure(model, inputs, [HiddenNorms()])) == 1


def test_a_position_that_was_not_measured_is_the_measurement_s_one_error():
    model, ids = planted_model(F3), planted_ids(F3)
    measured = measure(model, ids)
    for find in (lambda: sink_heads(model, measured, 0.3, 99), lambda: onset_depth(model, measured, 99)):
        with pytest.raises(InputError, match="position 99 was not measured; measured: 0 to"):
            find()


def test_what_is_not_finite_is_neither_a_head_nor_an_onset():
    model, ids = planted_model(F3), planted_ids(F3)
    data = measure(model, ids).data
    broken = Measurement(data.assign(attention_received=data["attention_received"] * np.nan))
    with pytest.raises(InputError, match="activations are not finite"):
        sink_heads(model, broken)
    with pytest.raises(InputError, match="no ratio to the others"):
        onset_depth(model, Measurement(data.assign(hidden_norm=data["hidden_norm"] * np.nan)))
    half = data["hidden_norm"].copy()
    half[:, 0] = np.nan
    assert onset_depth(model, Measurement(data)) == 1
    assert onset_depth(model, Measurement(data.assign(hidden_norm=half))) > 1, "no growth from what is not known"
