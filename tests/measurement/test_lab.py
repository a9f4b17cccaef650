"""The lab model under every operation of the catalog: what observers say against weights written out whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import xarray as xr
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from sinkscope.attention import CATALOG, ENTRIES, Attended, AttentionSpec, Operation
from sinkscope.measurement import (
    AttentionEntropy,
    AttentionReceived,
    HeadOutputs,
    IncomingAttention,
    MaximalLogits,
    QueryKeyAngles,
    QueryKeyValueNorms,
    ReceivedByLength,
    SinkUpdate,
    SlotReceived,
    measure,
    observe,
)
from sinkscope.model import LabForCausalLM
from tests.attention.variants import KINDS
from tests.families.registry import FAMILIES
from tests.measurement.conftest import lab_model, operations
from tests.measurement.observers.naive import close
from tests.measurement.test_batches import padded, real_part

SINKS, LENGTHS = [0, 3], (8, 16)
OBSERVERS = (
    AttentionReceived(),
    SlotReceived(),
    IncomingAttention(),
    AttentionEntropy(),
    MaximalLogits(),
    HeadOutputs(),
    SinkUpdate(SINKS),
    QueryKeyValueNorms(),
    QueryKeyAngles(),
    ReceivedByLength(LENGTHS),
)


@dataclass(frozen=True)
class Written:
    """One layer's call: what its operation was given, and what its naive reference makes of it."""

    operation: Operation
    query: Tensor
    key: Tensor
    value: Tensor
    given: Mapping[str, Any]
    attended: Attended

    @property
    def spec(self) -> AttentionSpec:
        return self.operation.spec

    @property
    def weights(self) -> Tensor:
        """On tokens, as the layer used them."""
        return self.attended.weights.double()

    @property
    def slots(self) -> Tensor:
        return self.attended.slot_weights.double()

    @property
    def read(self) -> tuple[Tensor, Tensor]:
        """Weights on tokens, and on slots in sum, as the sink rate reads them."""
        weights, slots = self.weights, self.slots
        if self.spec.metric_weights == "renormalized":
            total = weights.abs().sum(-1, keepdim=True) + slots.abs().sum(-1, keepdim=True) + 1e-8
            weights, slots = weights.abs() / total, slots.abs() / total
        return weights, slots.sum(-1)

    @property
    def values(self) -> Tensor:
        return self.value.double().repeat_interleave(2, 1)

    @property
    @torch.no_grad()
    def logits(self) -> list[Tensor]:
        """What the normaliser gets, from formulas; what is not visible is 0."""
        query, key, operation = self.query.double(), self.key.double(), self.operation.double()
        if self.spec.similarity.kind == "kernel":
            query, key = (feature(operation, x) for x in (query, key))
        key = key.repeat_interleave(2, 1)
        if self.spec.difference is not None:  # rotary pairs stay together: channels 0, 1 and 4, 5 of eight
            pairs = [(query[..., part], key[..., part]) for part in ([0, 1, 4, 5], [2, 3, 6, 7])]
        else:
            pairs = [(query, key)]
        found = [q @ k.mT * self.given["scaling"] for q, k in pairs]
        if self.spec.first_key is not None:
            first = torch.arange(query.shape[2]) == 0
            found = [scores + operation.first_key.logit[:, None, None] * first for scores in found]
        if self.spec.temperature is not None:
            seen = torch.arange(1, query.shape[2] + 1).double().log()
            found = [scores * operation.temperature.scale[:, None, None] * seen[:, None] for scores in found]
        if self.spec.decay is not None:
            kept = torch.sigmoid(self.given["hidden"].double() @ operation.decay.weight.T + operation.decay.bias).log()
            found = [scores + forgotten(kept.transpose(1, 2)) for scores in found]
        operation.float()
        return [scores.tril() for scores in found]


def feature(operation: Operation, x: Tensor) -> Tensor:
    if operation.spec.similarity.feature == "elu":
        return F.elu(x) + 1
    return torch.relu(x @ operation.similarity.first.T) @ operation.similarity.second.T


def forgotten(kept: Tensor) -> Tensor:
    """Σ_{k < l ≤ t} log f_l."""
    tokens = kept.shape[-1]
    sums = [[kept[..., key + 1 : query + 1].sum(-1) for key in range(tokens)] for query in range(tokens)]
    return torch.stack([torch.stack(row, -1) for row in sums], -2)


def written(model: LabForCausalLM, ids: Tensor) -> list[Written]:
    """Every layer's call of one pass."""
    found: list[Written] = []

    def look(operation: Operation, args: tuple, kwargs: dict, output: Attended) -> None:
        reference = operation.forward(*args, **(kwargs | {"path": "reference"}))
        found.append(Written(operation, *args[:3], kwargs, reference))

    hooks = [layer.self_attn.operation.register_forward_hook(look, with_kwargs=True) for layer in model.model.layers]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("name", operations())
def test_every_observer_agrees_with_what_is_written_out(name: str, ids: Tensor) -> None:
    model = lab_model(name)
    with torch.no_grad():
        plain = model(ids).logits
        with observe(model, *OBSERVERS) as seen:
            assert torch.equal(model(ids).logits, plain)
    data, tokens = seen.measurement().data, ids.shape[1]
    queries = torch.arange(tokens, 0, -1)
    assert ("slot_received" in data) == bool(CATALOG[name].slots)
    assert ("entropy_bound" in data) == CATALOG[name].is_plain_softmax
    for index, layer in enumerate(written(model, ids)):
        weights, slot = layer.read
        close(data["attention_received"][:, index], weights.sum(-2) / queries)
        if layer.spec.slots:
            close(data["slot_received"][:, index], slot.mean(-1))
        best = F.one_hot(weights.argmax(-1), tokens) * (weights.amax(-1) >= slot)[..., None] * (weights > 0)
        close(data["most_attended"][:, index], best.sum(-2) / queries)
        close(data["attention_entropy"][:, index], entropy(torch.cat([weights, slot[..., None]], -1)), 5e-5)
        close(data["max_logit"][:, index], torch.stack([s.abs().amax((-2, -1)) for s in layer.logits]).amax(0), 2e-5)
        for place, length in enumerate(LENGTHS):
            close(data["attention_received_by_length"][:, index, :, place], weights[..., :length, 0].mean(-1))
        check_outputs(data, index, layer)


def entropy(outcomes: Tensor) -> Tensor:
    """Mean over rows that have any weight."""
    total = outcomes.abs().sum(-1, keepdim=True)
    shares = outcomes.abs() / total.clamp(min=1e-30)
    rows = torch.special.entr(shares).sum(-1)
    return rows.sum(-1) / (total[..., 0] > 0).sum(-1)


def check_outputs(data: Any, index: int, layer: Written) -> None:
    output = layer.attended.output.double()
    close(data["output_norm"][:, index], output.norm(dim=-1), 2e-5)
    close(data["value_norm"][:, index], layer.values.norm(dim=-1))
    part = layer.weights[..., SINKS] @ layer.values[:, :, SINKS]
    if any(piece.kind == "exclusive" for piece in layer.spec.output):
        along = (part * layer.values).sum(-1, keepdim=True) / layer.values.square().sum(-1, keepdim=True)
        part = part - along * layer.values
    elif layer.spec.difference is not None or any(piece.kind != "value_bias" for piece in layer.spec.output):
        part = part * (output / (layer.weights @ layer.values))  # gates and norms scale what was aggregated
    close(data["sink_output_norm"][:, index], part.norm(dim=-1).mean(-1), 1e-4)
    close(data["rest_output_norm"][:, index], (output - part).norm(dim=-1).mean(-1), 1e-4)


@pytest.mark.parametrize("name", ["gated_head", "gated_elementwise", "gated_value"])
def test_gates_are_in_what_is_measured(name: str, ids: Tensor) -> None:
    """Values as they were gated, and head outputs as their gates let them through."""
    model = lab_model(name)
    data = measure(model, ids, [QueryKeyValueNorms(), HeadOutputs(), AttentionReceived()]).data
    with torch.no_grad():
        for index, layer in enumerate(written(model, ids)):
            hidden, attention = layer.given["hidden"], model.model.layers[index].self_attn
            values = attention.v_proj(hidden).unflatten(-1, (2, 8)).transpose(1, 2)
            if name == "gated_value":
                values = values * gate(layer.operation.value_gate, hidden).unflatten(-1, (2, 8)).transpose(1, 2)
            values = values.repeat_interleave(2, 1)
            close(data["value_norm"][:, index], values.norm(dim=-1))
            outputs = layer.attended.weights @ values
            if name == "gated_head":  # head h reads the h-th quarter of the block's input
                parts, learned = hidden.unflatten(-1, (4, 8)), layer.operation.output_modules[0]
                opened = torch.sigmoid((parts * learned.weight).sum(-1) + learned.bias)
                outputs = outputs * opened.transpose(1, 2)[..., None]
            if name == "gated_elementwise":
                opened = gate(layer.operation.output_modules[0], hidden)
                outputs = outputs * opened.unflatten(-1, (4, 8)).transpose(1, 2)
            close(data["output_norm"][:, index], outputs.norm(dim=-1))


def gate(learned: torch.nn.Module, hidden: Tensor) -> Tensor:
    return torch.sigmoid(hidden @ learned.weight.T + learned.bias)


def test_a_slot_without_any_mass_is_none(ids: Tensor) -> None:
    """StableMask's last place has nothing to give mass to: its slot's logit is −inf, and its row a softmax."""
    spec = ENTRIES["stable_mask"].make(context=24)
    data = measure(lab_model(spec), ids, OBSERVERS).data
    assert not any(bool(data[name].isnull().any()) for name in ("attention_entropy", "entropy_bound", "slot_received"))
    assert bool((data["attention_entropy"] >= data["entropy_bound"] - 1e-5).all())


@pytest.mark.parametrize("position", ["alibi", "relative_t5"])
def test_a_position_bias_is_in_weights_and_logits(position: str, ids: Tensor) -> None:
    model = lab_model("sink_logit", position=position)
    data = measure(model, ids, [AttentionReceived(), SlotReceived(), MaximalLogits()]).data
    for index, layer in enumerate(written(model, ids)):
        weights, slot = layer.read
        close(data["attention_received"][:, index], weights.sum(-2) / torch.arange(24, 0, -1))
        close(data["slot_received"][:, index], slot.mean(-1))
        biased = layer.logits[0] + layer.given["bias"].rows(slice(0, 24)).detach().double()
        close(data["max_logit"][:, index], biased.tril().abs().amax((-2, -1)), 2e-5)


@pytest.fixture(scope="module")
def usual() -> xr.Dataset:
    """What all observers say of plain softmax."""
    return measure(lab_model("softmax"), FAMILIES["llama"].inputs()["input_ids"], "all").data


@pytest.mark.slow
@pytest.mark.parametrize("name", operations())
def test_all_observers_have_something_to_say_or_a_reason(name: str, ids: Tensor, usual: xr.Dataset) -> None:
    measured, spec = measure(lab_model(name), ids, "all"), CATALOG[name]
    found = set(measured.data.data_vars)
    own = ({"slot_received"} if spec.slots else set()) | ({"entropy_bound"} if spec.is_plain_softmax else set())
    assert found == set(usual.data_vars) - {"entropy_bound"} | own
    assert set(measured.record["not_applicable"]) == {"ExpertPeaks"}
    of_outliers = {"outlier_token_share", "outlier_dimension_share"}  # nothing to share where there are none
    for variable in found - own - of_outliers:
        assert int(measured.data[variable].isnull().sum()) == int(usual[variable].isnull().sum()), variable


ONE_PER_PATH = [name for name in CATALOG if name in (*KINDS, "gated_head", "qk_norm")]
"""Padding and caches reach an operation through masks and positions, in as many ways as there are code paths."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_PER_PATH)
def test_a_padded_row_is_the_row_alone(name: str, ids: Tensor) -> None:
    model, lengths = lab_model(name), [24, 13]
    together = measure(model, padded(ids[:2], lengths, "left"), OBSERVERS).data
    for row, length in enumerate(lengths):
        alone = measure(model, real_part(ids, row, length, "left"), OBSERVERS).data
        for variable in set(together.data_vars) - {"tokens"}:
            found = together[variable][row]
            along = {"position": slice(0, length)} if "position" in found.dims else {}
            close(found.isel(along), alone[variable][0], 2e-4)
            if along:
                assert bool(found.isel(position=slice(length, None)).isnull().all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_PER_PATH)
def test_cached_steps_are_one_pass(name: str, ids: Tensor) -> None:
    model = lab_model(name)
    cache = DynamicCache(config=model.config)
    with observe(model, *OBSERVERS) as seen, torch.no_grad():
        for start, stop in ((0, 9), (9, 22), (22, 23), (23, 24)):
            model(ids[:, start:stop], past_key_values=cache, use_cache=True)
    found, whole = seen.measurement().data, measure(model, ids, OBSERVERS).data
    assert set(found.data_vars) == set(whole.data_vars)
    for variable in whole.data_vars:
        close(found[variable], whole[variable], 2e-4)
