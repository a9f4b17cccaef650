"""What heads write, and the sink's part of it, against whole matrices of weights and values."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from sinkscope.errors import InputError
from sinkscope.measurement import measure, observe
from sinkscope.measurement.observers import outputs as room
from sinkscope.measurement.observers.outputs import HeadOutputs
from sinkscope.measurement.observers.update import SinkUpdate
from tests.measurement.conftest import build
from tests.measurement.observers.naive import ALL, Whole, close, look
from tests.measurement.test_batches import padded, real_part
from tests.planted.factory import Plant, null_model, planted_ids, planted_model

OUTPUTS = ("output_norm", "output_mean_share", "output_rank_one")
UPDATES = ("sink_output_norm", "rest_output_norm", "sink_output_constancy")
WITHOUT_VALUE_SLOTS = [name for name in ALL if name not in ("lab:kv_bias", "lab:v_bias")]


def written(layer: Whole) -> torch.Tensor:
    """Σ_j A_tj v_j, (sample, head, query, dim)."""
    return layer.weights @ layer.values


@pytest.mark.parametrize("name", WITHOUT_VALUE_SLOTS)
def test_outputs_are_weights_times_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, HeadOutputs())
    for index, layer in enumerate(layers):
        outputs = written(layer)
        close(data["output_norm"][:, index, :, : outputs.shape[2]], outputs.norm(dim=-1), 1e-4)
        share = outputs.mean(2).norm(dim=-1).square() / outputs.norm(dim=-1).square().mean(-1)
        close(data["output_mean_share"][:, index], share, 1e-4)
        strengths = torch.linalg.svdvals(outputs).square()
        close(data["output_rank_one"][:, index], strengths[..., 0] / strengths.sum(-1), 2e-3)


@pytest.mark.parametrize(
    ("name", "site"),
    [("qwen3_next", "o_proj"), ("bert", "output.dense"), ("gpt2", "c_proj"), ("albert", "dense"), ("modernbert", "Wo")],
)
def test_outputs_are_what_the_projection_receives(name: str, site: str, ids: torch.Tensor) -> None:
    """Gates act between the attention function and the projection; uses of a shared layer are told apart."""
    model, given = build(name), []
    paths = [path for path, _ in model.named_modules() if re.search(rf"att[a-z_.]*\.{site}$", path)]
    hooks = [
        model.get_submodule(path).register_forward_hook(lambda _, args, __: given.append(args[0])) for path in paths
    ]
    data = measure(model, ids, [HeadOutputs()]).data
    for hook in hooks:
        hook.remove()
    assert data.sizes["layer"] == len(given)
    for index, flat in enumerate(given):
        close(data["output_norm"][:, index], flat.unflatten(-1, (4, -1)).norm(dim=-1).mT.detach(), 1e-5)


@pytest.mark.parametrize("name", ALL)
def test_the_sinks_part_and_the_rest_are_the_whole_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = [0, 3]
    data, layers = look(name, monkeypatch, SinkUpdate(positions))
    for index, layer in enumerate(layers):
        part = layer.weights[..., positions] @ layer.values[:, :, positions]
        rest = layer.call.output.double() - part
        close(data["sink_output_norm"][:, index], part.norm(dim=-1).mean(-1), 1e-4)
        close(data["rest_output_norm"][:, index], rest.norm(dim=-1).mean(-1), 1e-4)
        constancy = part.mean(2).norm(dim=-1).square() / part.norm(dim=-1).square().mean(-1)
        close(data["sink_output_constancy"][:, index], constancy, 1e-4)
        if name in WITHOUT_VALUE_SLOTS:
            others = [key for key in range(layer.weights.shape[-1]) if key not in positions]
            close(rest, layer.weights[..., others] @ layer.values[:, :, others], 1e-4)


def test_with_all_positions_nothing_is_left(ids: torch.Tensor) -> None:
    data = measure(build("llama"), ids, [SinkUpdate(range(24)), HeadOutputs()]).data
    assert float(data["rest_output_norm"].max()) < 1e-5
    close(data["sink_output_norm"], data["output_norm"].mean("position"), 1e-5)
    close(data["sink_output_constancy"], data["output_mean_share"], 1e-5)


@pytest.mark.parametrize(
    ("name", "side"),
    [
        *((name, "left") for name in ("llama", "mistral", "lab:sigmoid", "qwen3_next")),
        *((name, "right") for name in ("llama", "gpt_oss", "bert")),
    ],
)
def test_padded_rows_are_the_rows_alone(name: str, side: str, ids: torch.Tensor) -> None:
    model, lengths = build(name), [24, 19, 13]
    observers = [HeadOutputs(), SinkUpdate((0, 2))]
    together = measure(model, padded(ids, lengths, side), observers).data
    for row, length in enumerate(lengths):
        alone = measure(model, real_part(ids, row, length, side), observers).data
        close(together["output_norm"][row, ..., :length], alone["output_norm"][0], 2e-4)
        assert bool(together["output_norm"][row, ..., length:].isnull().all())
        for variable in (*OUTPUTS[1:], *UPDATES):
            close(together[variable][row], alone[variable][0], 2e-3)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "lab:sigmoid"])
def test_cached_passes_are_one_pass(name: str, ids: torch.Tensor) -> None:
    model, observers = build(name), [HeadOutputs(), SinkUpdate((0, 11))]
    cache = DynamicCache(config=model.config)
    with observe(model, *observers) as seen, torch.no_grad():
        for start, stop in ((0, 9), (9, 17), (17, 24)):
            model(ids[:, start:stop], past_key_values=cache, use_cache=True)
    found, whole = seen.measurement().data, measure(model, ids, observers).data
    for variable in (*OUTPUTS, *UPDATES):
        close(found[variable], whole[variable], 2e-4)


def test_batches_of_any_size_give_the_same(ids: torch.Tensor) -> None:
    """Sums of a batch are made smaller when the next one begins."""
    model, observers = build("llama"), [HeadOutputs(), SinkUpdate()]
    whole = measure(model, ids, observers).data
    for batch in (1, 2):
        parts = measure(model, ids, observers, batch_size=batch).data
        for variable in (*OUTPUTS, *UPDATES):
            close(parts[variable], whole[variable], 2e-5)


def test_closed_batches_keep_no_matrices(ids: torch.Tensor) -> None:
    model = build("llama")
    with observe(model, HeadOutputs()) as seen, torch.no_grad():
        for row in ids:
            model(row[None], use_cache=False)
    kept = [{name for sums in batch.places.values() for _, name in sums.sums} for batch in seen._batches]
    assert ["products" in names for names in kept] == [False, False, True]


def test_activations_that_are_not_finite_are_a_finding(ids: torch.Tensor) -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.fill_(3e38)
    with pytest.warns(UserWarning, match="NaN or infinite"):
        measurement = measure(model, ids, [HeadOutputs(), SinkUpdate()])
    assert measurement.record["non_finite"]["first"] == "layer 'model.layers.1.self_attn'"
    assert bool(measurement.data["output_rank_one"][:, 0].notnull().all())


@pytest.mark.parametrize("wrong", [(), (-1,)])
def test_positions_that_are_none_are_refused(wrong: tuple) -> None:
    with pytest.raises(InputError, match="expected numbers such as"):
        SinkUpdate(wrong)


def test_the_record_says_where_outputs_were_read(ids: torch.Tensor) -> None:
    observers = measure(build("llama"), ids, [HeadOutputs()]).record["observers"]
    assert observers[0]["at_projection"] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def test_a_broadcasting_sink_writes_one_direction_and_a_drained_one_nothing() -> None:
    ids = planted_ids()
    drained, broadcast, null = (
        measure(model, ids, [HeadOutputs(), SinkUpdate()]).data.isel(layer=slice(1, None)).mean("sample")
        for model in (planted_model(Plant()), planted_model(Plant(value="broadcast")), null_model())
    )
    assert float(broadcast["output_rank_one"].min()) > 0.95
    assert float(broadcast["output_mean_share"].min()) > 0.95
    assert float(broadcast["sink_output_constancy"].min()) > 0.95
    assert bool((broadcast["sink_output_norm"] > 5 * broadcast["rest_output_norm"]).all())
    assert bool((drained["sink_output_norm"] < 0.02 * broadcast["sink_output_norm"]).all())
    later = drained["output_norm"][..., 1:].mean("position")
    assert bool((later < 0.1 * broadcast["output_norm"][..., 1:].mean("position")).all())
    assert float(null["output_rank_one"].max()) < 0.8
    np.testing.assert_array_less(null["sink_output_norm"].values, null["rest_output_norm"].values)


def test_the_output_projections_of_a_model_are_looked_for_once(
    ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    find = room.output_projection
    monkeypatch.setattr(room, "output_projection", lambda *given: looked.append(given[1]) or find(*given))
    measure(build("llama"), ids, [HeadOutputs()])
    assert len(looked) == len(set(looked)) == 2
