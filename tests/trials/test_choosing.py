"""Choosing: the halves are kept apart, a planted gain is found in its head, and one that is none is not claimed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import All, Reweigh
from sinkscope.trials import (
    CALIBRATIONS,
    Option,
    calibration_of,
    calibration_trial,
    choose_heads,
    text_scores,
    zero_tuning,
)
from tests.families.registry import FAMILIES

HARM = Reweigh(30.0, (1,), heads=((1, 2),))


def texts(rows: int = 12, tokens: int = 20) -> torch.Tensor:
    return torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(0))


def test_scores_are_those_of_the_logits():
    model, ids = FAMILIES["llama"].build("sdpa"), texts(4)
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    found = text_scores(model, {"input_ids": ids, "attention_mask": mask}, batch_size=3)
    with torch.no_grad():
        logs = model(ids, attention_mask=mask).logits.log_softmax(-1)
    for row, start in ((0, 0), (1, 6)):
        own = [-float(logs[row, t - 1, ids[row, t]]) for t in range(start + 1, 20)]
        assert found.loss[row] == pytest.approx(np.mean(own), rel=1e-5)
        spread = [-float((logs[row, t].exp() * logs[row, t]).sum()) for t in range(start, 19)]
        assert found.entropy[row] == pytest.approx(np.mean(spread), rel=1e-5)
        right = [float(logs[row, t - 1].argmax() == ids[row, t]) for t in range(start + 1, 20)]
        assert 1 - found.right[row] == pytest.approx(1 - np.mean(right), rel=1e-5)


def improvable(model: torch.nn.Module) -> torch.Tensor:
    """Texts that the model would write with one head reweighed: undoing nothing, that head alone helps."""
    ids = texts(16, 4)
    with HARM.applied(model), torch.no_grad():
        for _ in range(16):
            logits = model(ids).logits[:, -1] * 4
            ids = torch.cat(
                [ids, torch.multinomial(logits.softmax(-1), 1, generator=torch.manual_seed(ids.shape[1]))], 1
            )
    return ids


@pytest.mark.slow
def test_a_planted_gain_is_found_in_its_head_and_holds_elsewhere():
    """Texts written by a model with a factor of 30 in one head: that factor in that head predicts them best."""
    model = FAMILIES["llama"].build("sdpa")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(8)
    ids = improvable(model)
    x30 = [Option("x30", lambda heads: Reweigh(30.0, (1,), heads))]
    trial = calibration_trial(model, ids, x30, choose_on=8, controls=2)
    gains = trial.data["gain"].sel(option="x30").values
    assert np.unravel_index(gains.argmax(), gains.shape) == (1, 2)
    assert trial.cost("chosen", "nats").value < 0
    assert (1, 2) in calibration_of(trial).heads
    assert trial.record["calibrated_on"]["texts"] == trial.texts == 8
    harm = [Option(f"x{factor}", lambda heads, factor=factor: Reweigh(factor, (1,), heads)) for factor in (30.0, 0.5)]
    found = choose_heads(model, ids[:8], harm)
    estimated = found.estimated["x30.0"]  # slopes, of a change far beyond where they hold
    assert (1, 2) in sorted(estimated, key=estimated.__getitem__)[-2:]


@pytest.mark.slow
def test_the_texts_held_out_have_no_part_in_the_choice():
    model, ids = FAMILIES["llama"].build("sdpa"), texts()
    other = ids.clone()
    other[6:] = ids[6:].flip(0, 1)
    options = [
        Option("x4", lambda heads: Reweigh(4.0, (0,), heads)),
        Option("x.2", lambda heads: Reweigh(0.2, (0,), heads)),
    ]
    one, two = (calibration_trial(model, each, options, choose_on=6, controls=1) for each in (ids, other))
    assert one.record["calibration"] == two.record["calibration"]
    for name in ("gain", "estimated"):
        assert one.data[name].equals(two.data[name])
    assert one.cost("all heads", "nats").value != two.cost("all heads", "nats").value


def test_nothing_is_chosen_where_nothing_helps():
    model, ids = FAMILIES["llama"].build("sdpa"), texts()
    twin = [Option("same", lambda heads: All((Reweigh(1.0, (0,), heads),)))]
    found = choose_heads(model, ids, twin, heads=((0, 0), (1, 1)))
    assert (found.heads, found.intervention, found.after) == ((), None, found.before)
    trial = calibration_trial(model, ids, twin, heads=((0, 0), (1, 1)))
    assert "nothing was chosen" in trial.verdict
    assert trial.named("arm") == ["all heads"]
    assert calibration_of(trial) is None
    assert trial.cost("all heads", "nats").value == 0


def test_zero_tuning_by_entropy_needs_no_truth_and_is_written():
    model, ids = FAMILIES["llama"].build("sdpa"), texts(8)
    found = zero_tuning(model, ids, (0.5, 2.0), objective="entropy", heads=((0, 0), (1, 3)))
    assert set(found.gains["gamma=0.5"]) == {(0, 0), (1, 3)}
    assert found.objective == "entropy"
    none, chosen = (text_scores(model, ids, each).entropy.mean() for each in (None, found.intervention))
    assert (found.before, found.after) == (pytest.approx(none), pytest.approx(chosen))


@pytest.mark.parametrize("name", [name for name in CALIBRATIONS if CALIBRATIONS[name].of_images is None])
def test_every_method_makes_options_for_heads_and_for_all(name):
    method, model = CALIBRATIONS[name], FAMILIES["llama"].build("sdpa")
    for option in method.options(method.defaults[:1], 0):
        for heads in (((0, 1),), None):
            found = text_scores(model, texts(2, 12), option.of_heads(heads))
            assert np.isfinite(found.loss).all()


def test_what_has_no_meaning_is_refused():
    model, ids = FAMILIES["llama"].build("sdpa"), texts()
    option = [Option("x2", lambda heads: Reweigh(2.0, (0,), heads))]
    for options, said in (
        ({"choose_on": 1}, "at least 2 to choose on"),
        ({"choose_on": 11}, "2 that are held out"),
        ({"objective": "los"}, "did you mean 'loss'"),
        ({"heads": ((7, 0),)}, "does not exist"),
    ):
        with pytest.raises(InputError, match=said):
            calibration_trial(model, ids, option, **options)
    with pytest.raises(InputError, match="options: give at least one"):
        choose_heads(model, ids, [])
    with pytest.raises(InputError, match="changes nothing"):
        zero_tuning(model, ids, (1.0,))
    with pytest.raises(UnsupportedModelError, match="next-token"):
        text_scores(FAMILIES["bert"].build("sdpa"), ids)
    with pytest.raises(InputError, match="texts of one token"):
        text_scores(model, ids[:, :1])


def test_tokens_of_an_image_are_predicted_by_nobody():
    """The same texts with another token in the image's places: what is scored is what is left."""
    from tests.families.inputs import IMAGE_TOKEN

    family = FAMILIES["llava"]
    model, inputs = family.build("sdpa"), family.inputs()
    found = text_scores(model, inputs)
    with torch.no_grad():
        logs = model(**inputs).logits[:, :-1].log_softmax(-1)
    ids = inputs["input_ids"]
    nll = -logs.gather(-1, ids[:, 1:, None])[..., 0]
    text = ids[:, 1:] != IMAGE_TOKEN
    assert 0 < int(text.sum()) < text.numel()
    for row in range(len(ids)):
        assert found.loss[row] == pytest.approx(float(nll[row][text[row]].mean()), rel=1e-5)
