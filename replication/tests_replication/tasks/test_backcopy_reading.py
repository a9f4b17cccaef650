"""What is read of Bigram-Backcopy models, and what interventions do, against loops over eager attention maps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sinkscope.hooks.dispatch import editing
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope_replication.tasks.backcopy_ablations import (
    Forced,
    WithoutValue,
    ablated,
    all_on_first,
    all_on_previous,
    diagonal,
    ideal,
    without_feed_forward,
)
from sinkscope_replication.tasks.backcopy_law import Law
from sinkscope_replication.tasks.backcopy_reading import Reading

from .conftest import drawn


def built(law: Law, attention: str = "softmax", layers: int = 1, heads: int = 1) -> LabForCausalLM:
    torch.manual_seed(0)
    model = LabForCausalLM(
        LabConfig(
            vocab_size=law.tokens,
            hidden_size=16,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=32,
            max_position_embeddings=12,
            attention=attention,
            position="learned",
            norm="layernorm",
            ffn="relu",
        )
    ).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 8
    return model


@pytest.fixture
def reading(law: Law) -> Reading:
    return Reading(law, drawn(law, 6, 12))


def inside(model: LabForCausalLM, ids: Tensor, name: str) -> Tensor:
    """What a submodule gives."""
    seen: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(ids)
    handle.remove()
    return seen[0]


def kinds(reading: Reading) -> dict[str, list[tuple[int, int]]]:
    """(sample, query) of each kind, by the definition."""
    rows = reading.ids.tolist()
    places = [(n, t) for n in range(len(rows)) for t in range(1, len(rows[0]))]
    triggers = [(n, t) for n, t in places if 1 <= rows[n][t] <= reading.law.triggers]
    return {"triggers": triggers, "others": [place for place in places if place not in triggers]}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_losses_are_those_above_the_laws(reading):
    model = built(reading.law)
    with torch.no_grad():
        logs = model(reading.ids).logits.log_softmax(-1)
    surprise = reading.law.surprise(reading.ids)
    found = reading.losses(model)
    for kind, places in kinds(reading).items():
        excess = [-float(logs[n, t, reading.ids[n, t + 1]]) - float(surprise[n, t]) for n, t in places if t + 1 < 12]
        assert found[f"excess_{kind}"] == pytest.approx(mean(excess), abs=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "relu", "softmax_off_by_one"])
def test_heads_are_read_as_defined(reading, attention):
    model = built(reading.law, attention, heads=2)
    ids, places = reading.ids, kinds(reading)
    maps = model(ids, output_attentions=True).attentions[0].detach()
    value = inside(model, ids, "model.layers.0.self_attn.v_proj").unflatten(-1, (2, 8)).transpose(1, 2)
    outputs = maps @ value

    def share(n: int, head: int, t: int, key: int) -> float:
        total = float(maps[n, head, t].sum())
        return float(maps[n, head, t, key]) / total if total > 0 else 0.0

    on_bos = [mean([share(n, head, t, 0) for n, t in places["others"]]) for head in (0, 1)]
    head = on_bos.index(max(on_bos))
    norms = {kind: mean([float(outputs[n, head, t].norm()) for n, t in where]) for kind, where in places.items()}
    found = reading.heads(model)
    assert found["bos_attention"] == found["bos_attention/layer=0"] == pytest.approx(max(on_bos), abs=1e-5)
    assert found["bos_attention/triggers"] == pytest.approx(
        mean([share(n, head, t, 0) for n, t in places["triggers"]]), abs=1e-5
    )
    assert found["copy_attention"] == pytest.approx(
        mean([share(n, head, t, t - 1) for n, t in places["triggers"]]), abs=1e-5
    )
    assert found["output_ratio"] == pytest.approx(norms["others"] / norms["triggers"], rel=1e-4)
    lengths = value.norm(dim=-1)
    assert found["value_ratio"] == pytest.approx(float((lengths[..., 0] / lengths[..., 1:].mean(-1)).mean()), rel=1e-4)
    stream = inside(model, ids, "model.embed_tokens") + model.model.position.table.weight[:12]
    lengths = stream.detach().norm(dim=-1)
    assert found["norm_ratio/depth=0"] == pytest.approx(
        float((lengths[:, 0] / lengths[:, 1:].mean(1)).mean()), rel=1e-4
    )
    assert found["norm_ratio"] == max(found["norm_ratio/depth=0"], found["norm_ratio/depth=1"])
    assert ("logit_gap" in found) == (attention != "relu")


def test_the_logit_gap_is_one_of_logits(reading):
    model = built(reading.law)
    query, key = (inside(model, reading.ids, f"model.layers.0.self_attn.{name}_proj") for name in "qk")
    scores = (query @ key.mT) / math.sqrt(16)
    gaps = [
        float(scores[n, t, 0]) - mean([float(scores[n, t, j]) for j in range(1, t + 1)])
        for n, t in kinds(reading)["others"]
    ]
    assert reading.heads(model)["logit_gap"] == pytest.approx(mean(gaps), abs=1e-4)


def test_patterns(small):
    ids = torch.tensor([[0, 2, 1, 2, 4]])
    assert ideal(small, ids)[0].argmax(-1).tolist() == [0, 0, 1, 0, 0]
    assert diagonal(ids)[0].argmax(-1).tolist() == [0, 1, 2, 3, 4]
    assert all_on_first(ids)[0].argmax(-1).tolist() == [0, 0, 0, 0, 0]
    assert all_on_previous(ids)[0].argmax(-1).tolist() == [0, 0, 1, 2, 3]
    for weights in (ideal(small, ids), diagonal(ids), all_on_first(ids), all_on_previous(ids)):
        assert torch.equal(weights.sum(-1), torch.ones(1, 5))


@pytest.mark.parametrize("pattern", ["ideal", "diagonal"])
def test_a_forced_pattern_is_what_a_layer_then_does(reading, pattern):
    model = built(reading.law, layers=2, heads=2)
    ids = reading.ids
    weights = ideal(reading.law, ids) if pattern == "ideal" else diagonal(ids)
    layer = "model.layers.1.self_attn"
    baseline = inside(model, ids, layer)[0]
    value = inside(model, ids, f"{layer}.v_proj")
    expected = model.get_submodule(f"{layer}.o_proj")(weights @ value)
    with editing(Forced(model.get_submodule(layer), weights)):
        found = inside(model, ids, layer)[0]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(inside(model, ids, layer)[0], baseline)


def test_a_value_is_taken_out(reading):
    model = built(reading.law)
    layer = model.model.layers[0].self_attn
    maps = model(reading.ids, output_attentions=True).attentions[0][:, 0]
    value = inside(model, reading.ids, "model.layers.0.self_attn.v_proj").clone()
    value[:, 0] = 0
    with editing(WithoutValue(layer)):
        found = inside(model, reading.ids, "model.layers.0.self_attn")[0]
    torch.testing.assert_close(found, layer.o_proj(maps @ value))


def test_a_feed_forward_is_taken_out_at_the_bos(reading):
    model = built(reading.law)
    block = model.model.layers[0]
    before = inside(model, reading.ids, "model.layers.0")
    with without_feed_forward(block):
        found = inside(model, reading.ids, "model.layers.0")
    assert torch.equal(found[:, 1:], before[:, 1:])
    attended = inside(model, reading.ids, "model.layers.0.self_attn")[0][:, 0]
    stream = inside(model, reading.ids, "model.embed_tokens")[:, 0] + model.model.position.table.weight[0]
    torch.testing.assert_close(found[:, 0], stream + attended)
    assert torch.equal(inside(model, reading.ids, "model.layers.0"), before)


def test_interventions_are_done_on_the_layer_that_triggers_need(reading):
    model = built(reading.law, layers=2)
    baseline = reading.losses(model)
    found = dict(ablated(reading, model))
    costs = [found[f"excess_triggers/zero_head/layer={layer}"] for layer in (0, 1)]
    active = costs.index(max(costs))
    assert found["excess_triggers/zero_head"] == costs[active]
    assert found["excess_others/zero_head"] == found[f"excess_others/zero_head/layer={active}"]
    with editing(WithoutValue(model.model.layers[active].self_attn)):
        assert reading.losses(model)["excess_others"] == found["excess_others/bos_value"]
    for name, pattern in {"all_on_first": all_on_first, "all_on_previous": all_on_previous}.items():
        with editing(Forced(model.model.layers[active].self_attn, pattern(reading.ids))):
            assert reading.losses(model)["excess_triggers"] == found[f"excess_triggers/{name}"]
    names = ("zero_head", "diagonal", "ideal", "bos_attention", "bos_value", "bos_feed_forward")
    assert {f"excess_{kind}/{name}" for kind in ("triggers", "others") for name in names} <= set(found)
    assert reading.losses(model) == baseline  # all is put back


def test_zeroing_a_head_that_gives_nothing_costs_nothing(reading):
    model = built(reading.law)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.zero_()
    baseline, found = reading.losses(model), dict(ablated(reading, model))
    for name, loss in baseline.items():
        for intervention in ("zero_head", "diagonal", "ideal", "bos_value"):
            assert found[f"{name}/{intervention}"] == pytest.approx(loss, abs=1e-6)
