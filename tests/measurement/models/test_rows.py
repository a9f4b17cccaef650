"""What a row says, over five families, and the files that hold it."""

from __future__ import annotations

import json

import pytest
import torch

import sinkscope as ss
from sinkscope.data import build_inputs
from sinkscope.measurement import Measurement, Survey, SurveySpec, measure_models
from sinkscope.model import load
from tests.measurement.models.conftest import BUILDERS, FEW

pytestmark = pytest.mark.slow  # five models are surveyed
NAMES = list(BUILDERS)


@pytest.fixture(scope="module")
def five(zoo, tmp_path_factory):
    """The survey over all five families. Shared: leave it as it is."""
    spec = SurveySpec(models=[{"model": str(zoo / name), "label": name} for name in NAMES], **FEW)
    return measure_models(spec, tmp_path_factory.mktemp("five"))


def of(found: Survey, label: str, kind: str = "random"):
    [row] = [row for row in found.rows if (row.label, row.input) == (label, kind)]
    return row


@pytest.mark.release
def test_every_family_is_a_row(five):
    assert [(row.label, row.input) for row in five.rows] == [(name, kind) for name in NAMES for kind in FEW["inputs"]]
    for row in five.rows:
        assert row.status == "measured", row.reason
        assert row.low <= row.sink_rate <= row.high
        assert row.first == {"random": "a random token", "repeated": "the token that is repeated"}[row.input]
        assert len(row.by_layer) == row.layers
        assert row.samples == 3
        assert row.tokens == 16


def test_a_row_is_what_measure_finds(five, zoo):
    model = load(zoo / "lab")
    ids = build_inputs("random", tokenizer=None, vocab_size=97, tokens=16, samples=3, seed=0).input_ids
    direct, row = ss.measure(model, ids), of(five, "lab")
    assert row.sink_rate == pytest.approx(direct.sink_rate(position=0))
    assert row.hidden_norm_ratio == pytest.approx(float(direct.hidden_norm_ratio().max()), rel=1e-5)
    assert row.value_norm_ratio == pytest.approx(float(direct.value_norm_ratio().min()), rel=1e-5)
    assert row.parameters == sum(weight.numel() for weight in model.parameters())
    stored = Measurement.load(five.folder / row.results / "measurement.nc")
    assert torch.equal(
        torch.tensor(stored.data["attention_received"].values), torch.tensor(direct.data["attention_received"].values)
    )


def test_only_learned_sinks_have_a_slot_mass(five):
    assert 0 < of(five, "sinks").slot_mass < 1
    assert of(five, "lab").slot_mass is None


def test_a_hybrid_counts_its_attention_layers_alone(five):
    row = of(five, "hybrid")
    assert row.layers == 2
    assert [(layer.layer, layer.depth) for layer in row.by_layer] == [(1, pytest.approx(1 / 3)), (3, 1.0)]


def test_an_encoder_says_so(five):
    assert {layer.stack for layer in of(five, "encoder").by_layer} == {"encoder"}


def test_the_strongest_position_of_repeated_tokens_is_not_a_late_one(five):
    assert of(five, "lab", "repeated").strongest_position < 8
    assert of(five, "lab", "repeated").hidden_norm_ratio == pytest.approx(1, abs=1e-4)


def test_files_hold_the_rows(five):
    assert {path.name for path in five.folder.iterdir()} >= {"survey.json", "table.csv", "table.md", "results"}
    assert Survey.load(five.folder).rows == five.rows
    assert five.table()["label"].tolist() == [row.label for row in five.rows]
    assert five.wide().columns.tolist() == ["model", "parameters", "random", "repeated"]
    stored = json.loads((five.folder / of(five, "lab").results / "row.json").read_text())
    assert stored["record"]["versions"]["torch"] == torch.__version__
    assert stored["settings"]["kind"] == "random"
