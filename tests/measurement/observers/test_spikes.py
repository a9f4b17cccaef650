"""Spike dimensions against sorted entries, and keys against the projection written out (Gu et al. 2025)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.measurement import HeadOutputs, measure
from sinkscope.measurement.observers import spikes as room
from sinkscope.measurement.observers.spikes import SpikeDimensions
from tests.families.registry import COLLECTED, FAMILIES
from tests.measurement.conftest import MASKS, build
from tests.measurement.observers.residual import LENGTHS, close, measured, outlying, read_rows
from tests.planted.factory import Plant, null_model, planted_ids, planted_model

PROBED = (0, 2, 15)  # the last row has no position 15


def key_of(attention: torch.nn.Module, vector: np.ndarray, family: str) -> np.ndarray:
    """(kv heads, head width), with the bias."""
    given = torch.from_numpy(vector).float()
    if family == "gpt2":  # query, key and value in one row of the output
        return (given @ attention.c_attn.weight + attention.c_attn.bias)[32:64].view(4, 8).detach().numpy()
    return attention.k_proj(given).view(-1, 8).detach().numpy()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_shares_and_keys_are_those_of_the_largest_dimensions(family: str, ids: torch.Tensor) -> None:
    lengths = LENGTHS if family == "llama" else [24] * 3  # GPT-2 counts padding as positions
    model, observer = outlying(family), SpikeDimensions(count=3, positions=PROBED)
    if family == "gpt2":
        torch.nn.init.normal_(model.transformer.h[0].attn.c_attn.bias)
    data, rows = measured(model, ids, lengths, observer), read_rows(model, ids, lengths)
    layers = model.transformer.h if family == "gpt2" else model.model.layers
    for sample, length in enumerate(lengths):
        for probe, position in enumerate(PROBED):
            at = {"sample": sample, "probe_position": probe}
            if position >= length:
                assert all(data[name][at].isnull().all() for name in data.data_vars if name not in MASKS)
                continue
            for depth, state in enumerate(rows.states[sample]):
                token = state[position]
                order = sorted(range(len(token)), key=lambda dim: -abs(token[dim]))[:3]
                here = {**at, "depth": depth}
                assert data["spike_dimension"][here].values.tolist() == order
                close(data["spike_share"][here], np.cumsum(token[order] ** 2) / (token @ token))
            for layer, given in enumerate(rows.entering[sample]):
                token, attention = given[position], layers[layer].attn if family == "gpt2" else layers[layer].self_attn
                order = sorted(range(len(token)), key=lambda dim: -abs(token[dim]))[:3]
                here, full = {**at, "layer": layer}, key_of(attention, token, family)
                close(data["normed_spike_share"][here], np.cumsum(token[order] ** 2) / (token @ token))
                for spikes in range(3):
                    kept = np.zeros_like(token)
                    kept[order[: spikes + 1]] = token[order[: spikes + 1]]
                    part = key_of(attention, kept, family)
                    for head in range(4):
                        group = head * len(full) // 4
                        cosine = part[group] @ full[group] / np.linalg.norm(part[group]) / np.linalg.norm(full[group])
                        close(data["spike_key_cosine"][{**here, "head": head, "spikes": spikes}], cosine)
    assert data["spikes"].values.tolist() == [1, 2, 3]
    assert data["probe_position"].values.tolist() == list(PROBED)


def test_all_dimensions_make_the_whole_key(ids: torch.Tensor) -> None:
    data = measure(outlying(), ids, [SpikeDimensions(count=32)]).data
    close(data["spike_share"][..., -1], 1)
    close(data["spike_key_cosine"][..., -1], 1)
    assert float(data["spike_key_cosine"][..., 0].min()) < 0.9


def test_more_dimensions_than_there_are_are_refused(ids: torch.Tensor) -> None:
    model = build("llama")
    with pytest.raises(InputError, match=f"has {model.config.hidden_size} dimensions"):
        measure(model, ids, [SpikeDimensions(model.config.hidden_size + 1)])


@pytest.mark.parametrize("plant", [Plant(), Plant(sinks=(7,), dimension=40, onset=2)])
def test_a_planted_spike_makes_the_key_alone(plant: Plant) -> None:
    """The key from one dimension has a cosine above 0.999 with the full key when M ≥ 1000."""
    observer = SpikeDimensions(positions=(plant.sinks[0], plant.sinks[0] + 1))
    data = measure(planted_model(plant), planted_ids(plant), [observer]).data.isel(spikes=0)
    sink, other = data.isel(probe_position=0), data.isel(probe_position=1)
    assert (sink["spike_dimension"][:, plant.onset :] == plant.dimension).all()
    assert (sink["spike_share"][:, plant.onset :] > 0.999).all()
    assert (sink["normed_spike_share"][:, plant.onset :] > 0.999).all()
    assert (sink["spike_key_cosine"][:, plant.onset :] > 0.999).all()
    assert (sink["spike_share"][:, : plant.onset] < 0.9).all()
    assert (other["spike_share"] < 0.5).all()
    assert (other["spike_key_cosine"] < 0.9).all()


def test_without_a_plant_no_dimension_makes_the_key() -> None:
    data = measure(null_model(), planted_ids(Plant()), [SpikeDimensions()]).data.isel(spikes=0)
    assert float(data["spike_share"].max()) < 0.5
    assert float(data["spike_key_cosine"].max()) < 0.9


def test_latent_attention_has_shares_and_a_reason_in_place_of_the_key(ids: torch.Tensor) -> None:
    measurement = measure(build("deepseek_v3"), ids, [SpikeDimensions()])
    assert {"spike_share", "normed_spike_share"} <= set(measurement.data.data_vars)
    assert "spike_key_cosine" not in measurement.data
    (told,) = measurement.record["observers"]
    reasons = told["without_spike_key_cosine"]
    assert set(reasons) == {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    assert all("deepseek_v3" in reason for reason in reasons.values())


def test_cross_attention_is_left_out() -> None:
    data = measure(build("t5"), FAMILIES["t5"].inputs(), [SpikeDimensions()]).data
    for layer, stack in enumerate(data["stack"].values):
        assert bool(data["spike_key_cosine"][:, layer].isnull().all()) == (stack == "cross")


def test_the_keys_of_a_model_are_looked_for_once(ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    find = room.key_projection
    monkeypatch.setattr(room, "key_projection", lambda *given: looked.append(given[1]) or find(*given))
    measure(build("llama"), ids, [SpikeDimensions()])
    assert len(looked) == len(set(looked)) == 2


def test_padding_is_no_token_where_another_observer_reads_the_same_layer() -> None:
    model, ids = COLLECTED["bloom"].build(), COLLECTED["bloom"].inputs()["input_ids"][:1]
    padded = torch.cat([torch.zeros_like(ids[:, :4]), ids], 1)
    mask = (torch.arange(padded.shape[1]) >= 4).long()[None]
    observers = [HeadOutputs(), SpikeDimensions(positions=(0, 2))]  # outputs are read inside of the layer, so first
    alone = measure(model, ids, observers).data
    found = measure(model, {"input_ids": padded, "attention_mask": mask}, observers).data
    for name in ("normed_spike_share", "spike_key_cosine"):
        close(found[name], alone[name].values)
