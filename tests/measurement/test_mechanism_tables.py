"""Tables by head, depth, token and patch, on planted models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel, LlamaForCausalLM, YolosConfig, YolosModel

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, HiddenNorms, Measurement, measure
from tests.planted.factory import NULL, SINK_TOKEN, Plant, null_model, planted_ids, planted_model

TOKENS, SAMPLES = 32, 4


def measured(plant: Plant, model: LlamaForCausalLM | None = None) -> Measurement:
    return measure(model or planted_model(plant), planted_ids(plant, SAMPLES, TOKENS), "all")


@pytest.mark.slow
def test_a_drained_head_is_a_no_op_and_a_broadcasting_one_is_not() -> None:
    for value, kind in (("drained", "no-op"), ("broadcast", "broadcast")):
        plant = Plant(value=value, heads=((1, 0), (2, 3)))
        table = measured(plant).heads()
        assert len(table) == 16
        named = {(row.layer, row.head): row.kind for row in table.itertuples()}
        assert {head for head, found in named.items() if found == kind} == set(plant.heads)
        assert {found for head, found in named.items() if head not in plant.heads} == {"active"}


def test_the_angle_makes_the_planted_sink() -> None:
    plant = Plant(heads=((1, 0), (2, 3)))
    table = measured(plant).heads().set_index(["layer", "head"])
    planted, others = table.loc[list(plant.heads)], table.drop(list(plant.heads))
    assert (planted["cos_sink"] > 0.9).all()
    assert (planted["cos_others"].abs() < 0.3).all()
    assert (others["cos_sink"] < 0.6).all()
    assert (planted["lift"] > 5).all()
    assert (planted["value_ratio"] < 0.05).all()
    assert (planted["entropy"] < 0.1).all()
    assert (table["entropy"] >= table["entropy_bound"] - 1e-4).all()


def test_the_table_of_heads_stands_around_the_position_that_is_asked_for() -> None:
    measurement = measured(Plant(sinks=(7,)))
    assert (measurement.heads(position=7).query("layer > 0")["alpha"] > 0.9).all()
    assert (measurement.heads(position=0)["alpha"] < 0.5).all()
    with pytest.raises(InputError, match="position 99 was not measured"):
        measurement.heads(position=99)


@pytest.mark.slow
def test_massive_activations_have_their_onset_and_decay() -> None:
    for onset, decay in ((1, None), (2, 4), (0, 3)):
        plant = Plant(onset=onset, decay=decay, dimension=9)
        [row] = measured(plant).massive_activations().to_dict("records")
        assert (row["position"], row["dimension"], row["onset"]) == (0, 9, onset)
        assert row["decay"] == decay if decay else np.isnan(row["decay"])
        assert abs(row["value"] - 1000) < 20
    assert measured(NULL, null_model()).massive_activations().empty


def test_depths_show_the_massive_activation() -> None:
    table = measured(Plant(onset=2)).depths().set_index("depth")
    assert (table.loc[2:, ["hidden_norm_ratio", "token_peak_upper"]] > 50).all(axis=None)
    assert (table.loc[:1, "hidden_norm_ratio"] < 3).all()
    assert (table.loc[2:, "matrix_entropy"] < 0.5).all(), "one direction holds nearly all the energy"
    assert (table.loc[:1, "matrix_entropy"] > 1.5).all()
    assert (table.loc[2:, "kurtosis"] > 10 * table.loc[1, "kurtosis"]).all()


def test_the_sweep_is_the_rate_of_shorter_texts() -> None:
    plant = Plant(heads=((1, 0), (2, 3), (3, 1)))
    model, ids = planted_model(plant), planted_ids(plant, SAMPLES, TOKENS)
    sweep = measure(model, ids, "all").sweep((0.2, 0.4))
    for length in (16, 32):
        short = measure(model, ids[:, :length], [AttentionReceived()])
        for epsilon in (0.2, 0.4):
            found = float(sweep.sel(epsilon=epsilon, length=length))
            assert found == pytest.approx(short.sink_rate(epsilon, 0), abs=1e-4)
    assert sweep["length"].values.tolist() == [16, 32], "texts have no more tokens"


@pytest.mark.slow
def test_the_planted_token_is_named() -> None:
    measurement = measured(Plant(sinks=(0, 7)))
    [row] = measurement.sink_tokens().to_dict("records")
    assert (row["id"], row["sinks"], row["occurrences"]) == (SINK_TOKEN, 2 * SAMPLES, 2 * SAMPLES)
    assert (row["first"], row["last"], row["share"]) == (0, 7, 100)
    assert measured(NULL, null_model()).sink_tokens().empty


def test_first_tokens_that_fail_are_told_apart() -> None:
    plant = Plant()
    ids = planted_ids(plant, SAMPLES, TOKENS)
    ids[2, 0] = SINK_TOKEN + 5
    table = measure(planted_model(plant), ids, "all").first_tokens()
    assert table["id"].tolist()[0] == SINK_TOKEN + 5
    assert table["becomes_sink"].tolist() == [False, True, True, True]
    assert (table["hidden_norm_ratio"][1:] > 100).all()


def test_registers_and_artefact_patches_of_a_vision_model() -> None:
    torch.manual_seed(0)
    config = Dinov2WithRegistersConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=24, patch_size=4, num_register_tokens=2
    )
    model = Dinov2WithRegistersModel(config).eval()
    planted = torch.zeros(3, 1 + 2 + 36, 32)
    planted[torch.arange(3), torch.tensor([5, 20, 38])] = 50.0
    planted[:, 1] = 80.0
    model.encoder.layer[-1].register_forward_hook(lambda _, __, output: output + planted)
    measurement = measure(model, {"pixel_values": torch.randn(3, 3, 24, 24)}, [AttentionReceived(), HiddenNorms()])
    assert measurement.record["vision_prefix"] == ["CLS", "register 0", "register 1"]
    table = measurement.patches(times=5.0).set_index("kind")
    assert table["tokens"].to_dict() == {"CLS": 1, "register 0": 1, "register 1": 1, "artefact patch": 1, "patch": 35}
    assert table.loc["artefact patch", "norm"] > 200
    with pytest.raises(InputError, match="no norms of a vision stack"):
        measured(Plant()).patches()


def test_detection_tokens_are_no_patches() -> None:
    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=[24, 24],
        patch_size=4,
        num_detection_tokens=5,
    )
    model = YolosModel(config).eval()
    planted = torch.zeros(3, 1 + 36 + 5, 32)
    planted[:, 37:] = 50.0
    planted[:, 7] = 50.0
    model.encoder.layer[-1].register_forward_hook(lambda _, __, output: output + planted)
    measurement = measure(model, {"pixel_values": torch.randn(3, 3, 24, 24)}, [AttentionReceived(), HiddenNorms()])
    assert measurement.record["vision_suffix"] == {"detection": 5}
    table = measurement.patches(times=5.0).set_index("kind")
    assert table["tokens"].to_dict() == {"CLS": 1, "detection": 5, "artefact patch": 1, "patch": 35}
    assert table.loc["detection", "norm"] > 200
    assert table.loc["patch", "norm"] < 20
