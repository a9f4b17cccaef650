"""Every definition on models whose sink was planted: it finds what is there, and nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from sinkscope.errors import InputError
from sinkscope.measurements.definitions import DEFINITIONS, jaccard
from sinkscope.probes import AttentionReceived, Measurement, measure
from tests.planted.factory import NULL, Plant, null_model, planted_ids, planted_model

BY_ATTENTION = ["attention received", "strong sink", "five times uniform", "most attended"]
BY_ACTIVATION = ["massive activation", "massive, relative alone", "outlier token", "high-norm token"]


def measured(plant: Plant, tokens: int = 32) -> Measurement:
    return measure(planted_model(plant), planted_ids(plant, tokens=tokens), "all")


@pytest.fixture(scope="module")
def first() -> Measurement:
    return measured(Plant())


def test_all_definitions_agree_on_a_textbook_sink(first: Measurement) -> None:
    table = first.definitions()
    assert table["definition"].tolist() == [definition.name for definition in DEFINITIONS]
    assert (table["sinks"] == 1).all()
    assert (table["position_0"] == 100).all()
    assert (table["agreement"] == 1).all()
    assert (table["note"] == "").all()
    assert (first.agreement().values == 1).all()


def test_none_finds_anything_in_the_null_model() -> None:
    measurement = measure(null_model(), planted_ids(NULL), "all")
    assert (measurement.definitions()["sinks"] == 0).all()
    assert (measurement.agreement().values == 1).all(), "all agree that there is nothing"


def test_a_sink_elsewhere_is_found_where_it_is() -> None:
    table = measured(Plant(sinks=(7,))).definitions().set_index("definition")
    for name in (*BY_ATTENTION, *BY_ACTIVATION, "value-state drain"):
        assert (table.loc[name, "elsewhere"], table.loc[name, "elsewhere_share"]) == (7, 100), name
        assert table.loc[name, "position_0"] == 0, name
    assert table.loc["initial tokens", "sinks"] == 0


def test_two_sinks_are_both_found() -> None:
    table = measured(Plant(sinks=(0, 7))).definitions().set_index("definition")
    for name in ("attention received", "five times uniform", *BY_ACTIVATION, "like the first token"):
        assert table.loc[name, "sinks"] == 2, name
        assert (table.loc[name, "position_0"], table.loc[name, "elsewhere"]) == (100, 7), name
    assert table.loc["strong sink", "sinks"] == 0, "they share the attention"


def test_definitions_part_where_the_mechanism_does() -> None:
    without = measured(Plant(massive=False, onset=0)).definitions().set_index("definition")
    assert (without.loc[BY_ATTENTION, "position_0"] == 100).all()
    assert (without.loc[["massive activation", "massive, relative alone", "outlier token"], "sinks"] == 0).all()
    unattended = measured(Plant(attended=False)).definitions().set_index("definition")
    assert (unattended.loc[BY_ATTENTION, "sinks"] == 0).all()
    assert (unattended.loc[BY_ACTIVATION, "position_0"] == 100).all()
    broadcast = measured(Plant(value="broadcast")).definitions().set_index("definition")
    assert broadcast.loc["value-state drain", "sinks"] == 0
    assert broadcast.loc["attention received", "position_0"] == 100


def test_what_was_not_observed_is_said(first: Measurement) -> None:
    model = planted_model()
    table = measure(model, planted_ids(), [AttentionReceived()]).definitions().set_index("definition")
    assert table.loc["attention received", "sinks"] == 1
    assert table.loc["massive activation", "note"] == ("not observed: hidden_top, hidden_top_position, hidden_median")
    assert np.isnan(table.loc["massive activation", "sinks"])


def test_the_threshold_is_the_callers(first: Measurement) -> None:
    rules = first.definitions(0.45).set_index("definition")["rule"]
    assert rules["attention received"] == "mean attention received > 0.45 in some head"
    two = measured(Plant(sinks=(0, 7)))
    assert two.definitions(0.55)["sinks"][0] == 1
    assert two.definitions(0.65)["sinks"][0] == 0


def test_agreement_counts_places() -> None:
    one = np.array([[True, True, False], [True, False, False]])
    other = np.array([[True, False, False], [True, False, True]])
    assert jaccard(one, other) == 2 / 4
    assert jaccard(one & False, other & False) == 1.0


def test_tables_by_token_need_ids(first: Measurement) -> None:
    with pytest.raises(InputError, match="no attention received per token id"):
        Measurement(first.data.drop_vars("token_id")).sink_tokens()
    with pytest.raises(InputError, match="need their texts"):
        first.token_kinds()
