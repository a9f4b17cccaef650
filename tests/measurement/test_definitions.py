"""Every definition on models whose sink was planted: it finds what is there, and nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.measurement import DEFINITIONS, AttentionReceived, Measurement, measure
from sinkscope.measurement.definitions import jaccard
from tests.families.registry import FAMILIES
from tests.measurement.planted import edited_record
from tests.planted.factory import NULL, Plant, null_model, planted_ids, planted_model

ALL = ("all", "SpectralBands")  # what every definition needs
BY_ATTENTION = ["attention received", "strong sink", "five times uniform", "most attended"]
BY_ACTIVATION = ["massive activation", "massive, relative alone", "outlier token", "high-norm token"]


def measured(plant: Plant, tokens: int = 32) -> Measurement:
    return measure(planted_model(plant), planted_ids(plant, tokens=tokens), ALL)


@pytest.fixture(scope="module")
def first() -> Measurement:
    return measured(Plant())


@pytest.mark.slow
def test_all_definitions_agree_on_a_textbook_sink(first: Measurement) -> None:
    table = first.definitions()
    assert table["definition"].tolist() == [definition.name for definition in DEFINITIONS]
    assert (table["sinks"] == 1).all()
    assert (table["position_0"] == 100).all()
    assert (table["agreement"] == 1).all()
    assert (table["note"] == "").all()
    assert (first.agreement().values == 1).all()


def test_none_finds_anything_in_the_null_model() -> None:
    measurement = measure(null_model(), planted_ids(NULL), ALL)
    assert (measurement.definitions()["sinks"] == 0).all()
    assert (measurement.agreement().values == 1).all(), "all agree that there is nothing"


def test_a_sink_elsewhere_is_found_where_it_is() -> None:
    table = measured(Plant(sinks=(7,))).definitions().set_index("definition")
    for name in (*BY_ATTENTION, *BY_ACTIVATION, "value-state drain"):
        assert (table.loc[name, "elsewhere"], table.loc[name, "elsewhere_share"]) == (7, 100), name
        assert table.loc[name, "position_0"] == 0, name
    assert table.loc["initial tokens", "sinks"] == 0


@pytest.mark.slow
def test_two_sinks_are_both_found() -> None:
    table = measured(Plant(sinks=(0, 7))).definitions().set_index("definition")
    for name in ("attention received", "five times uniform", *BY_ACTIVATION, "like the first token"):
        assert table.loc[name, "sinks"] == 2, name
        assert (table.loc[name, "position_0"], table.loc[name, "elsewhere"]) == (100, 7), name
    assert table.loc["strong sink", "sinks"] == 0, "they share the attention"


@pytest.mark.slow
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
    assert table.loc["massive activation", "note"] == "not observed: hidden_max, hidden_median"
    assert np.isnan(table.loc["massive activation", "sinks"])


@pytest.mark.slow
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


def replaced(measurement: Measurement, samples: slice, **values: float) -> Measurement:
    """The measurement with other numbers, everywhere in some samples."""
    data = measurement.data.copy(deep=True)
    for name, value in values.items():
        data[name][samples] = value
    return Measurement(data)


def numbers_of(measurement: Measurement) -> list[str]:
    """What activations make, which may be NaN; masks are not."""
    floats = [name for name, each in measurement.data.items() if each.dtype.kind == "f" and "sample" in each.dims]
    return [name for name in floats if name not in ("visible_queries", "uniform_received")]


NUMBERS = ["definition", "sinks", "position_0", "elsewhere", "elsewhere_share", "agreement"]


@pytest.mark.slow
@pytest.mark.parametrize("sinks", [(0,), (7,)])
def test_samples_that_are_nan_count_nowhere(sinks: tuple[int, ...]) -> None:
    """Every number is that of the other samples alone, and the note says how many there are."""
    found = measured(Plant(sinks=sinks))
    samples = found.data.sizes["sample"]
    floats = numbers_of(found)
    broken = replaced(found, slice(1, 2), **dict.fromkeys(floats, np.nan))
    others = Measurement(found.data.isel(sample=[0, *range(2, samples)]))
    pd.testing.assert_frame_equal(broken.definitions()[NUMBERS], others.definitions()[NUMBERS])
    pd.testing.assert_frame_equal(broken.agreement(), others.agreement())
    notes = set(broken.definitions()["note"])
    assert notes == {f"not known in 1 of {samples} samples: NaN or infinite, or not kept"}
    if sinks == (0,):
        assert broken.definitions().set_index("definition").loc["massive activation", "position_0"] == 100
        assert broken.massive_activations()["samples"].tolist() == [1.0]


def test_where_nothing_is_known_nothing_is_said(first: Measurement) -> None:
    table = (
        replaced(first, slice(None), **dict.fromkeys(numbers_of(first), np.nan)).definitions().set_index("definition")
    )
    assert table[["sinks", "position_0", "elsewhere", "agreement"]].isna().all(axis=None)
    assert table["note"].str.startswith("not known in").all()


def test_a_model_that_overflows_in_half_precision_has_no_verdict() -> None:
    """All hidden states from the first block on are infinite: not one definition may call that "no sink"."""
    torch.manual_seed(0)
    model = FAMILIES["llama"].build("sdpa").half()
    with torch.no_grad():
        mlp = model.model.layers[0].mlp
        for projection in (mlp.gate_proj, mlp.up_proj):
            projection.weight.abs_()
        model.model.embed_tokens.weight.abs_()
        mlp.down_proj.weight.fill_(6e4)
    with pytest.warns(UserWarning, match="NaN or infinite"):
        found = measure(model, FAMILIES["llama"].inputs()["input_ids"], ALL)
    table = found.definitions().set_index("definition")
    by_state = table.loc[[*BY_ACTIVATION, "like the first token"]]
    assert by_state[["sinks", "position_0", "agreement"]].isna().all(axis=None)
    assert by_state["note"].str.startswith("not known in").all()
    assert found.depths()[["token_peak_upper", "token_peak_lower", "largest"]].iloc[1:].isna().all(axis=None)


def test_one_sink_that_is_known_outweighs_what_is_not(first: Measurement) -> None:
    """Or over heads and depths: a sink in one layer stays one, though another layer is NaN in that sample."""
    data = first.data.copy(deep=True)
    last = data.sizes["layer"] - 1
    data["attention_received"][0, last] = np.nan
    rate = first.layer_sink_rate().sel(position=0).values
    assert rate[:last].max() > 0
    table = Measurement(data).definitions().set_index("definition")
    assert table.loc["attention received", "position_0"] == 100
    assert "not known in 1 of" in table.loc["attention received", "note"], "of other positions it is not known"
    assert table.loc["attention received", "agreement"] == 1


def test_a_token_that_is_infinite_is_not_left_out_of_its_row(first: Measurement) -> None:
    """Among the others of its row the next largest would seem to stand out least: no ratio, rather than theirs."""
    data = first.data.copy(deep=True)
    data["hidden_max"][:, 2, 0] = np.nan  # as an infinite one is stored
    found = Measurement(data)
    assert np.isnan(found.depths()["token_peak_upper"][2])
    assert found.depths()["token_peak_upper"][3] > 100
    assert found.definitions().set_index("definition").loc["outlier token", "position_0"] == 100, "by other depths"


def test_heads_and_layers_that_are_not_there_raise_no_doubt(first: Measurement) -> None:
    data = first.data.copy(deep=True)
    free = [layer for layer, rate in enumerate(first.layer_sink_rate().sel(position=0).values) if rate == 0]
    for name in (name for name in data if "head" in data[name].dims and "position" in data[name].dims):
        data[name][:, free[0]] = np.nan  # a layer that has no such statistic
        data[name][:, free[-1], -1] = np.nan  # a head that it lacks
    pd.testing.assert_frame_equal(Measurement(data).definitions(), first.definitions())


def test_a_layer_that_the_record_calls_broken_is_one(first: Measurement) -> None:
    data = first.data.copy(deep=True)
    free = int(np.argmin(first.layer_sink_rate().sel(position=0).values))
    data["attention_received"][:, free] = np.nan
    place = f"layer '{data['layer_name'].values[free]}'"
    broken = edited_record(Measurement(data), non_finite={"places": [place], "samples": 1, "first": place})
    notes = broken.definitions().set_index("definition")["note"]
    assert notes["attention received"].startswith("not known in")
    assert notes["massive activation"] == ""


def test_padded_rows_raise_no_doubt() -> None:
    plant = Plant()
    ids = planted_ids(plant)
    mask = torch.ones_like(ids)
    mask[0, -9:] = 0
    found = measure(planted_model(plant), {"input_ids": ids, "attention_mask": mask}, ALL)
    assert (found.definitions()["note"] == "").all()
    assert (found.definitions()["sinks"] == 1).all()


def many_massive(first: Measurement, count: int) -> Measurement:
    """The row of sample 0 has massive entries at the first `count` positions, of the most that were kept."""
    data = first.data.copy(deep=True)
    kept = data.sizes["top"]
    data["hidden_max"][0, 2, :count] = 5e4
    data["hidden_top"][0, 2] = np.where(np.arange(kept) < count, 5e4, 1.0)
    data["hidden_top_position"][0, 2] = np.arange(kept)
    return Measurement(data)


def test_massive_tokens_are_all_found_however_few_entries_were_kept(first: Measurement) -> None:
    kept = first.data.sizes["top"]
    for count in (kept - 1, kept, kept + 5):
        table = many_massive(first, count).definitions().set_index("definition")
        samples = first.data.sizes["sample"]
        for name in ("massive activation", "massive, relative alone"):
            assert table.loc[name, "sinks"] == pytest.approx((count + samples - 1) / samples), (name, count)
            assert table.loc[name, "note"] == ""


def test_without_every_token_s_largest_entry_a_full_list_is_not_known_to_be_all(first: Measurement) -> None:
    kept = first.data.sizes["top"]
    for count, note in ((kept - 1, ""), (kept, "not known in 1 of")):
        part = Measurement(many_massive(first, count).data.drop_vars("hidden_max"))
        row = part.definitions().set_index("definition").loc["massive activation"]
        assert row["note"].startswith(note), count
        assert bool(row["note"]) == bool(note), count
        assert row["position_0"] == 100


def test_the_table_of_massive_entries_says_where_it_may_lack_some(first: Measurement) -> None:
    kept = first.data.sizes["top"]
    assert first.massive_activations()["complete"].all()
    assert many_massive(first, kept - 1).massive_activations()["complete"].all()
    assert not many_massive(first, kept).massive_activations()["complete"].any()
