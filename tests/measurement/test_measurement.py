"""A measurement as numbers, tables, figures and a file."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.measurement import (
    AttentionReceived,
    HiddenNorms,
    Measurement,
    SlotReceived,
    compare,
    find_tokens,
    measure,
)
from sinkscope.measurement.metrics import first_over_rest
from tests.families.registry import COLLECTED, FAMILIES
from tests.measurement.conftest import build, lab_model


@pytest.fixture
def measurement(ids: torch.Tensor) -> Measurement:
    return measure(build("llama"), ids)


def test_rates_of_positions(measurement: Measurement) -> None:
    rate = measurement.sink_rate(epsilon=0.2)
    assert rate.dims == ("position",)
    assert measurement.sink_rate(epsilon=0.2, position=3) == float(rate.sel(position=3))
    by_hand = 100 * (measurement.data["attention_received"].values > 0.2).mean((0, 1, 2))
    np.testing.assert_allclose(rate.values, by_hand)
    np.testing.assert_allclose(measurement.layer_sink_rate(0.2).mean("layer"), rate)


def test_an_interval_holds_its_rate(measurement: Measurement) -> None:
    interval = measurement.sink_rate_interval(0, 0.1)
    assert interval.value == pytest.approx(measurement.sink_rate(0.1, 0))
    assert interval.low <= interval.value <= interval.high


def test_uniform_attention_of_a_real_model_has_the_golden_alpha() -> None:
    model = build("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    alpha = measure(model, torch.randint(0, 97, (2, 64))).data["attention_received"]
    assert np.abs(alpha.values[..., 0] - 0.0741233).max() < 1e-6
    assert np.abs(alpha.values[..., 63] - 0.015625).max() < 1e-6


def test_few_tokens_come_with_a_warning(ids: torch.Tensor) -> None:
    short = measure(build("llama"), ids[:, :9])
    with pytest.warns(UserWarning, match="9 tokens"):
        short.sink_rate()
    with warnings.catch_warnings(action="error"):
        measure(build("llama"), ids[:, :10]).sink_rate()


def test_ratios(measurement: Measurement) -> None:
    hidden = measurement.data["hidden_norm"].values
    wanted = np.mean([[row[0] / row[1:].mean() for row in sample] for sample in hidden], 0)
    np.testing.assert_allclose(measurement.hidden_norm_ratio().values, wanted, rtol=1e-5)
    value = first_over_rest(measurement.data["value_norm"].values).mean((0, 2))
    np.testing.assert_allclose(measurement.value_norm_ratio().values, value, rtol=1e-5)


def test_sinks_by_row_are_over_the_tokens_of_the_decoder() -> None:
    model = build("bart")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "decoder" in name and ("q_proj.weight" in name or "k_proj.weight" in name):
                weight *= 30
    ids = torch.randint(3, 90, (2, 40), generator=torch.Generator().manual_seed(0))
    tokens = measure(model, {"input_ids": ids, "decoder_input_ids": ids[:, :30]}).sinks(0.1, by="row")
    assert tokens.rows is not None
    assert tokens.rows.real.sum(-1).tolist() == [30, 30]
    assert tokens.columns(torch.ones(2, 30)).any()


def test_the_table_has_a_row_per_layer(measurement: Measurement) -> None:
    table = measurement.table(0.1)
    assert table["layer"].tolist() == [0, 1]
    rates = measurement.layer_sink_rate(0.1)
    np.testing.assert_allclose(table["sink_rate"], rates.sel(position=0))
    seen_by_half = rates.isel(position=slice((rates.sizes["position"] + 1) // 2))
    np.testing.assert_allclose(table["strongest_rate"], seen_by_half.max("position"))
    assert table["strongest_position"].tolist() == seen_by_half.argmax("position").values.tolist()
    assert (table["low"] <= table["sink_rate"]).all()
    assert (table["sink_rate"] <= table["high"]).all()
    np.testing.assert_allclose(table["hidden_norm_ratio"], measurement.hidden_norm_ratio().values[1:])


def test_the_strongest_position_of_an_encoder_may_be_its_last() -> None:
    """Every query sees every key there, so no position is left out."""
    family = FAMILIES["bert"]
    found = measure(family.build("sdpa"), family.inputs())
    received = found.data["attention_received"].values
    received[...] = 0.0
    received[..., -1] = 1.0
    assert set(found.table()["strongest_position"]) == {received.shape[-1] - 1}


def test_the_table_of_a_hybrid_and_of_two_stacks() -> None:
    for name, layers in (("jamba", [1, 3]), ("bart", [0, 1] * 3)):
        family = FAMILIES[name]
        found = measure(family.build("sdpa"), family.inputs())
        assert found.table()["layer"].tolist() == layers
        assert found.table()["hidden_norm_ratio"].notna().all()


def test_the_table_has_the_columns_that_were_observed(ids: torch.Tensor) -> None:
    table = measure(build("llama"), ids, [AttentionReceived([3, 5])]).table()
    assert list(table.columns) == ["layer", "stack", "strongest_position", "strongest_rate"]


def test_the_summary_is_the_designs_json(measurement: Measurement) -> None:
    summary = json.loads(json.dumps(measurement.to_json(0.2), allow_nan=False))
    assert list(summary) == [
        "model",
        "input",
        "tokens",
        "samples",
        "epsilon",
        "sink_rate",
        "layers",
        "hidden_norm_ratio",
        "value_norm_ratio",
        "stacks",
        "answer",
    ]
    assert (summary["tokens"], summary["samples"], summary["epsilon"]) == (24, 3, 0.2)
    assert summary["sink_rate"]["0"] == measurement.sink_rate(0.2, 0)
    assert [layer["layer"] for layer in summary["layers"]] == [0, 1]
    assert len(summary["hidden_norm_ratio"]) == 3


def test_the_long_form_holds_every_number(measurement: Measurement) -> None:
    frame = measurement.to_dataframe()
    assert list(frame.columns) == ["variable", "sample", "layer", "head", "position", "depth", "value"]
    one = frame[
        (frame["variable"] == "key_norm") & (frame["sample"] == 1) & (frame["layer"] == 0) & (frame["head"] == 2)
    ]
    np.testing.assert_allclose(one["value"], measurement.data["key_norm"][1, 0, 2])


def test_a_figure(measurement: Measurement) -> None:
    figure = measurement.plot(0.2)
    assert isinstance(figure, go.Figure)
    line, heat = figure.data
    np.testing.assert_allclose(line.y, measurement.sink_rate(0.2))
    np.testing.assert_allclose(heat.z, measurement.data["attention_received"].mean("sample")[..., 0], rtol=1e-6)


def test_text_from_models_is_escaped(ids: torch.Tensor) -> None:
    model = build("llama")
    model.config.name_or_path = "<script>alert(1)</script>"
    found = measure(model, ids)
    assert "<script>" not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()
    assert "<script>" not in found.plot().layout.title.text


def test_a_saved_measurement_is_read_back_whole(measurement: Measurement, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "m.nc"
    measurement.save(path)
    loaded = Measurement.load(path)
    assert loaded.data.identical(measurement.data)
    assert loaded.record == measurement.record
    assert [entry.name for entry in path.parent.iterdir()] == ["m.nc"]


@pytest.mark.slow
def test_files_that_are_no_measurements_are_refused(measurement: Measurement, tmp_path: Path) -> None:
    path = tmp_path / "m.nc"
    with pytest.raises(InputError, match="no measurement at"):
        Measurement.load(path)
    path.write_text("hello")
    with pytest.raises(InputError, match="damaged"):
        Measurement.load(path)
    measurement.save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match="damaged"):
        Measurement.load(path)
    measurement.data.drop_attrs().to_netcdf(tmp_path / "foreign.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="damaged"):
        Measurement.load(tmp_path / "foreign.nc")


def test_what_was_not_measured_is_named(measurement: Measurement, ids: torch.Tensor) -> None:
    with pytest.raises(InputError, match="position 99 was not measured; measured: 0 to 23"):
        measurement.sink_rate(position=99)
    with pytest.raises(InputError, match="no slot_received"):
        measurement.slot_rate()
    with pytest.raises(InputError, match="unknown stack 'decodr': did you mean 'decoder'"):
        measurement.sink_rate(stack="decodr")
    norms = measure(build("llama"), ids, [HiddenNorms()])
    with pytest.raises(InputError, match=r"no attention_received.*observer AttentionReceived"):
        norms.sink_rate()


def test_sinks_of_a_stack_without_measured_layers_are_refused(ids: torch.Tensor) -> None:
    """XLNet predicts next tokens, and its attention sees later ones: it is measured as an encoder."""
    with pytest.raises(
        InputError, match="sinks are looked for in the decoder, of which no layer was measured; measured"
    ):
        find_tokens(COLLECTED["xlnet"].build(), ids, "measured")


def test_slot_rates_with_and_without_the_papers_extra_query(ids: torch.Tensor) -> None:
    found = measure(lab_model("k_bias"), ids, [SlotReceived()])
    slot = found.data["slot_received"].values
    assert found.slot_rate(0.3) == pytest.approx(100 * (slot > 0.3).mean())
    assert found.slot_rate(0.3, paper_compatible=True) == pytest.approx(100 * ((24 * slot + 1) / 25 > 0.3).mean())


def test_stacks_have_rates_of_their_own() -> None:
    family = FAMILIES["t5"]
    found = measure(family.build("sdpa"), family.inputs())
    alpha = found.data["attention_received"].values
    assert found.sink_rate(0.2, 0, stack="cross") == pytest.approx(100 * (alpha[:, 4:, :, 0] > 0.2).mean())


def test_comparing_with_itself_gives_no_difference(measurement: Measurement) -> None:
    comparison = compare(measurement, measurement)
    assert comparison.paired
    assert (comparison.table(0.2)[["difference", "low", "high"]] == 0).all(axis=None)
    assert "sink rate" in comparison._repr_html_()


def test_differences_have_intervals(measurement: Measurement, ids: torch.Tensor, tiny_llama: LlamaForCausalLM) -> None:
    other = measure(tiny_llama, ids)
    table = compare(measurement, other).table(0.1).set_index("quantity")
    row = table.loc["sink rate at position 0, %"]
    assert row["difference"] == pytest.approx(other.sink_rate(0.1, 0) - measurement.sink_rate(0.1, 0))
    assert (table["low"] <= table["difference"] + 1e-9).all()
    assert (table["difference"] <= table["high"] + 1e-9).all()
    assert not compare(measurement, measure(tiny_llama, ids.flip(1))).paired
