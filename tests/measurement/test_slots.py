"""The mass on slots: a model whose sink is learned, and no token, says so."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, Measurement, measure, slot_mass, slot_mass_by_layer
from sinkscope.report.observatory import observatory_page
from sinkscope.report.stored import Stored
from sinkscope.report.writing import results_page
from tests.families.registry import FAMILIES


@pytest.fixture(scope="module")
def gpt_oss() -> Measurement:
    """Every head's sink logit is 4 above scores near 0: nearly all mass goes to the slot, none over 0.3 to a token."""
    model = FAMILIES["gpt_oss"].build("eager")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(6.0)
    return measure(model, torch.randint(3, 90, (3, 24)), "all")


def cards(page: object) -> dict[str, str]:
    return {card.label: card.value for card in page.headlines}


def test_the_mass_is_what_no_token_receives(gpt_oss: Measurement) -> None:
    """Each query's weights on tokens and slots add up to 1: Σ_k alpha_k / T times the queries that see k, and slot."""
    data = gpt_oss.data
    on_tokens = (data["attention_received"].values * data["visible_queries"].values[:, :, None] / 24).sum(-1)
    found = slot_mass(data)
    assert found.mass.value == pytest.approx(1 - on_tokens.mean(), abs=1e-5)
    assert found.mass.value > 0.4
    assert (found.layers, found.of) == (data.sizes["layer"],) * 2
    assert found.mass.low <= found.mass.value <= found.mass.high
    assert found.rate == gpt_oss.slot_rate(0.3)
    np.testing.assert_allclose(slot_mass_by_layer(data), 1 - on_tokens.mean((0, 2)), atol=1e-5)


@pytest.mark.slow
def test_a_rate_of_zero_does_not_stand_alone(gpt_oss: Measurement) -> None:
    mass = slot_mass(gpt_oss.data)
    summary = json.loads(json.dumps(gpt_oss.to_json(), allow_nan=False))
    assert summary["slot"]["mass"] == mass.mass.value
    assert gpt_oss.table()["slot_mass"].tolist() == slot_mass_by_layer(gpt_oss.data).tolist()
    percent = f"{100 * mass.mass.value:.1f} %"
    assert cards(observatory_page(gpt_oss, "x", 0.3))["of the attention goes to slots, not to tokens"] == percent
    composed = cards(results_page("x", Stored(measurements={"gpt": gpt_oss})))
    assert composed["of the attention goes to slots, not to tokens: gpt"] == percent
    assert f"receive {percent} of the attention (95 % interval" in mass.sentence(0.3)


def test_layers_without_slots_do_not_thin_the_mass(gpt_oss: Measurement) -> None:
    data = gpt_oss.data.copy(deep=True)
    data["slot_received"][:, 1:] = np.nan
    found = slot_mass(data)
    assert (found.layers, found.of) == (1, data.sizes["layer"])
    assert found.mass.value == pytest.approx(float(data["slot_received"][:, 0].mean()))
    assert f"of the 1 of {found.of} layers" in found.sentence(0.3)


def test_a_model_without_slots_has_no_word_of_them() -> None:
    family = FAMILIES["llama"]
    plain = measure(family.build("sdpa"), family.inputs())
    assert slot_mass(plain.data) is None
    assert "slot" not in plain.to_json()
    assert "slot_mass" not in plain.table()
    with pytest.raises(InputError, match="no layer has slots"):
        slot_mass_by_layer(plain.data)


def test_a_mass_that_was_not_looked_for_is_not_said_to_be_none() -> None:
    model = FAMILIES["gpt_oss"].build("eager")
    ids = torch.randint(3, 90, (1, 12))
    with pytest.raises(InputError, match=r"it was not observed \(observer SlotReceived\)"):
        measure(model, ids, [AttentionReceived()]).slot_rate()
    assert slot_mass(measure(model, ids).data) is not None, "by default it is looked for"


@pytest.mark.slow
def test_where_activations_are_not_finite_the_mass_is_not_known(gpt_oss: Measurement) -> None:
    data = gpt_oss.data.assign(slot_received=gpt_oss.data["slot_received"] * np.nan)
    found = slot_mass(data)
    assert found.sentence(0.3).endswith("cannot be said: activations are NaN or infinite")
    assert found.to_json()["mass"] is None
    assert cards(observatory_page(Measurement(data), "x", 0.3))["of the attention goes to slots, not to tokens"] == (
        "unknown"
    )
