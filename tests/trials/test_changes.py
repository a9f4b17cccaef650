"""Does the sink matter: controls by text, arms whose effect is known, what the verdict rests on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.interventions import HideSink, RemoveContribution, Targets, ZeroHeads
from sinkscope.interventions.targets import NEVER
from sinkscope.trials import Texts, Trial, changed, matters
from sinkscope.trials.changes import OTHERS, SinkArms, other_targets, table
from tests.trials.planted import ids, llama

MORE = {"on": (0,), "controls": 2, "after": 4, "calibrate_on": ids(3, 12, 5)}


def keys(targets: Targets) -> list[list[int]]:
    return [np.flatnonzero(row < NEVER).tolist() for row in targets.first]


def test_controls_are_other_keys_before_the_first_query_each_another_one() -> None:
    texts = Texts.of(llama(), ids(4, 12))
    drawn = [other_targets(Targets.behind((0,), 4), texts, index, 0) for index in range(4)]
    assert drawn[3] is None, "three keys come before token 4"
    found = [keys(each) for each in drawn if each is not None]
    for row in range(4):
        assert sorted(one[row][0] for one in found) == [1, 2, 3]
    assert all(set(each.first[each.first < NEVER]) == {4} for each in drawn if each is not None), "for the same queries"
    assert other_targets(Targets.behind((0,), 2), texts, 0, 0) is None, "a single other key is no comparison"
    assert len({tuple(map(tuple, one)) for one in found}) == 3


def test_a_control_depends_on_its_text_and_its_number_alone() -> None:
    texts = Texts.of(llama(), ids(4, 12))
    targets = Targets.behind((0, 2), 8)
    whole = other_targets(targets, texts, 1, 0)
    turned = other_targets(targets, Texts.of(llama(), ids(4, 12).flip(0)), 1, 0)
    assert whole is not None
    assert turned is not None
    np.testing.assert_array_equal(whole.first[::-1], turned.first)
    assert all(len(row) == 2 and not {0, 2} & set(row) for row in keys(whole)), "as many, and no sinks"
    other = other_targets(targets, texts, 1, 1)
    assert other is not None
    assert not np.array_equal(whole.first, other.first)


@pytest.mark.parametrize("texts", [12, 16])  # of which 8 are for the choice: as many as are scored, and more
def test_tokens_that_belong_to_a_text_are_looked_for_in_the_scored_texts(texts: int) -> None:
    text = ids(texts, 12).clamp(max=48)
    places = torch.randint(0, 8, (texts,), generator=torch.Generator().manual_seed(2))
    text[torch.arange(texts), places] = 49
    trial = matters(llama(), text, ["hide-sink"], on="ids:49", after=1, controls=0)
    hidden = [[key for key, _ in row] for row in trial.record["arms"]["hide-sink"]["on"]]
    assert hidden == [[place] for place in places[8:].tolist()]
    assert "The tokens of 'ids:49' are found in the scored texts themselves." in trial.record["notes"]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_results_depend_neither_on_batches_nor_on_other_arms(batch: int) -> None:
    model, text = llama(), ids(5, 12)
    whole = matters(model, text, batch_size=5, **MORE)
    parts = matters(model, text, ("swap-sink", "hide-sink"), batch_size=batch, **MORE)
    for arm in ("hide-sink", "swap-sink"):
        for name in (arm, *parts.controls(arm)):
            np.testing.assert_allclose(parts.values(name), whole.values(name), rtol=1e-4, atol=1e-7)
        assert len(parts.controls(arm)) == 2


def test_arms_are_scored_where_they_change_something_and_nowhere_else() -> None:
    model, text = llama(), ids(5, 12)
    trial = matters(model, text, ("hide-sink",), **MORE)
    assert trial.data["scored"].values.tolist() == [7] * 5, "predictions at tokens 4 to 10"
    with HideSink((0,), 4).applied(model), torch.no_grad():
        logs = model(text).logits.log_softmax(-1)
    nats = -logs[:, 4:-1].gather(-1, text[:, 5:, None])[..., 0].mean(1)
    np.testing.assert_allclose(trial.values("hide-sink", "nats"), nats, rtol=1e-4)


def test_constants_come_from_texts_that_are_not_scored() -> None:
    model, text = llama(), ids(20, 12)
    trial = matters(model, text, ("fold-sink",), on=(0,), after=4, controls=0)
    calibrated = trial.record["calibrated_on"]
    assert (calibrated["texts"], calibrated["in_sample"], trial.texts) == (8, False, 12)
    changed_there = text.clone()
    changed_there[:8, 1:] = ids(8, 11, 9)
    other = matters(model, changed_there, ("fold-sink",), on=(0,), after=4, controls=0)
    assert not np.allclose(trial.values("fold-sink"), other.values("fold-sink"), rtol=1e-4, atol=0)


def test_a_constant_first_token_is_not_exchanged_for_itself() -> None:
    model, text, others = llama(), ids(4, 12), ids(3, 12, 5)
    text[:, 0] = others[:, 0] = 1
    trial = matters(model, text, **{**MORE, "calibrate_on": others})
    assert trial.named("arm") == ["hide-sink", "mute-sink", "fold-sink", "trim-sink", OTHERS]
    assert any("are the same in all texts" in said for said in trial.record["notes"])
    with pytest.raises(InputError, match="not run"):
        matters(model, text, ("mean-sink",), **{**MORE, "calibrate_on": others})


def test_equal_mass_moves_the_same_and_little_of_it_tells_nothing() -> None:
    trial = matters(llama(), ids(4, 12), ("trim-sink",), **MORE)
    assert trial.named("arm") == ["trim-sink", OTHERS]
    assert not trial.named("control"), "the two sides are compared with each other"
    moved = trial.record["sink"]["moved"]
    assert 0 < moved <= 0.25
    frame = table(trial).set_index("arm")
    assert frame.loc["trim-sink", "mass"] == frame.loc[OTHERS, "mass"] == moved
    record = trial.record
    record["sink"]["moved"] = 0.01
    little = Trial(trial.data.assign_attrs(record=json.dumps(record)))
    assert table(little)["word"].str.contains("too little mass").all()


def test_a_curve_and_layers_are_series() -> None:
    model, text = llama(), ids(4, 12)
    curve = matters(model, text, ("mute-sink",), by="after", **MORE)
    assert curve.named("arm") == ["mute-sink@1", "mute-sink@2", "mute-sink@4", "mute-sink@8"]
    assert set(curve.data["scored"].values) == {3}, "all where the last one changes something"
    assert [len(curve.controls(arm)) for arm in curve.named("arm")] == [0, 0, 2, 2]
    layers = matters(model, text, ("mute-sink",), by="layer", **MORE)
    assert layers.named("arm") == ["mute-sink@layer 0", "mute-sink@layer 1"]
    assert layers.verdict


def test_where_the_sink_is_afterwards_is_measured_under_the_change() -> None:
    torch.manual_seed(0)
    trial = matters(llama(), ids(4, 40), ("hide-sink",), **{**MORE, "calibrate_on": ids(3, 40, 5)}, epsilon=0.08)
    places = trial.record["sink"]["afterwards"]
    assert places["full"]["rate_of_old"] > 0
    assert places["hide-sink"]["position"] != 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": ("hide-it",)}, "hide-it"),
        ({"what": ()}, "arm ''"),
        ({"after": 30}, "none comes 30 after position 0"),
        ({"on": "none"}, "acts on some tokens"),
        ({"layers": (7,)}, "layer 7 does not exist"),
    ],
)
def test_bad_input_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        matters(llama(), ids(4, 12), **{**MORE, **options})


def test_any_intervention_against_the_controls_that_it_draws() -> None:
    model, text = llama(), ids(5, 20)
    trial = changed(model, text, ZeroHeads([(0, 1)]), controls=3)
    assert trial.named("arm") == ["ZeroHeads"]
    facts = [trial.record["arms"][name]["heads"] for name in trial.controls("ZeroHeads")]
    assert len({json.dumps(heads) for heads in facts}) == 3, "each another one"
    with ZeroHeads([(0, 1)]).applied(model), torch.no_grad():
        nats = -model(text).logits.log_softmax(-1)[:, :-1].gather(-1, text[:, 1:, None])[..., 0].mean(1)
    np.testing.assert_allclose(trial.values("ZeroHeads", "nats"), nats, rtol=1e-4)
    again = changed(model, text, ZeroHeads([(0, 1)]), controls=3, batch_size=2)
    np.testing.assert_allclose(trial.data["kl"], again.data["kl"], rtol=1e-4, atol=1e-7)
    with pytest.raises(InputError, match="position 30 is in no row"):
        changed(model, text, RemoveContribution(1, (30,)))


def test_fewer_controls_where_fewer_exist() -> None:
    trial = changed(llama(1), ids(3, 20), ZeroHeads([(0, 1), (0, 2)]), controls=4)
    assert len(trial.controls("ZeroHeads")) == 1


def test_the_old_name_says_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="changed"):
        trial = ss.effect(llama(), ids(3, 20), ZeroHeads([(0, 1)]), controls=1)
    assert trial.controls("ZeroHeads")


def test_saved_and_read_again_it_says_the_same(tmp_path) -> None:
    trial = matters(llama(), ids(4, 20), **{**MORE, "calibrate_on": ids(3, 20, 5)})
    trial.save(tmp_path / "trial.nc")
    assert ss.trials.load(tmp_path / "trial.nc").verdict == trial.verdict
    assert SinkArms(Targets.behind((0,)), 8).arm("hide-sink").control is not None
