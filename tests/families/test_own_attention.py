"""Queries, keys and values of families with attention of their own: against their caches, maps and projections."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.hooks import Computed, following, has_attention, own_attention, projection, projections
from sinkscope.measurement import (
    AttentionReceived,
    HeadOutputs,
    MaximalLogits,
    QueryKeyValueNorms,
    every,
    measure,
    observe,
)
from sinkscope.measurement.calls.collected import Collector
from sinkscope.measurement.calls.own import OwnCalls
from sinkscope.measurement.observers.update import SinkUpdate
from tests.families.family import Family
from tests.families.registry import COLLECTED
from tests.families.registry.sizes import MASKED, SIZES, TEXT

FALCONS = {
    "falcon_of_all_heads": Family("FalconConfig", {**SIZES, "multi_query": False}, hosts=("eager",)),
    "falcon_of_groups": Family(
        "FalconConfig", {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2}, hosts=("eager",)
    ),
    "falcon_alibi_of_all_heads": Family(
        "FalconConfig", {**SIZES, "multi_query": False, "alibi": True}, hosts=("eager",)
    ),
}
NAMES = ("bloom", "mpt", "falcon", "falcon_alibi", "gptj", "gpt_neo", "codegen", "xglm")
OWN: dict[str, Family] = {**{name: COLLECTED[name] for name in NAMES}, **FALCONS}
DISENTANGLED = Family(
    "DebertaConfig", {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, auto=MASKED, hosts=("eager",)
)
ENCODERS = ("roformer", "megatron_bert", "mpnet", "rembert", "luke", "tapas", "big_bird", "data2vec_vision")


def tiny(name: str) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    family = OWN.get(name) or COLLECTED[name]
    if reason := family.obstacle("eager"):
        pytest.skip(f"{name}: {reason}")
    return family.build(), family.inputs()


def uses(model: nn.Module, inputs: dict[str, Any]) -> list[Computed]:
    """What each module multiplied in one pass."""
    found: list[Computed] = []
    with following(model, lambda module, computed: found.append(computed)), torch.no_grad():
        model(**inputs)
    return found


@pytest.mark.parametrize("name", OWN)
def test_keys_and_values_are_those_of_the_cache(name: str) -> None:
    model, inputs = tiny(name)
    with torch.no_grad():
        cache = model(**inputs, use_cache=True).past_key_values
    data = measure(model, inputs, [AttentionReceived(), QueryKeyValueNorms()]).data
    for index, layer in enumerate(cache.layers):
        for kind, vectors in (("key_norm", layer.keys), ("value_norm", layer.values)):
            norms = vectors.float().norm(dim=-1)
            wanted = norms.repeat_interleave(4 // norms.shape[1], 1)
            torch.testing.assert_close(torch.from_numpy(data[kind].values[:, index]), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OWN)
def test_projections_make_these_queries_keys_and_values(name: str) -> None:
    model, inputs = tiny(name)
    made: dict[str, Tensor] = {}
    if (first := next(iter(own_attention(model)), None)) is None:
        pytest.skip("its attention is that of transformers' interface, from 5.24 on")
    with ExitStack() as stack:
        for kind in ("query", "key", "value"):
            projection(model, first, kind).read_output(lambda out, kind=kind: made.update({kind: out}), stack)
        computed = uses(model, inputs)[0]
    with torch.no_grad():
        norms = measure(model, inputs, [AttentionReceived(), QueryKeyValueNorms()]).data["query_norm"].values[:, 0]
    queries = made["query"].unflatten(-1, (4, 8)).transpose(1, 2)
    torch.testing.assert_close(torch.from_numpy(norms), queries.norm(dim=-1), rtol=1e-4, atol=1e-5)
    values = made["value"].unflatten(-1, (-1, 8)).transpose(1, 2)
    torch.testing.assert_close(values.repeat_interleave(computed.value.shape[1] // values.shape[1], 1), computed.value)
    keys = made["key"].unflatten(-1, (-1, 8)).transpose(1, 2).norm(dim=-1)  # a rotation keeps lengths
    wide = keys.repeat_interleave(computed.key.shape[1] // keys.shape[1], 1)
    torch.testing.assert_close(wide, computed.key.norm(dim=-1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OWN, *ENCODERS])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_the_softmax_of_the_scores_is_the_map(name: str, side: str | None) -> None:
    model, inputs = tiny(name)
    if side is not None and "input_ids" in inputs:
        inputs = padded(inputs["input_ids"], side=side)
    collector, calls = Collector(model), OwnCalls(model)
    asked, _ = collector.ask((), inputs)
    with following(model, calls.take), torch.no_grad():
        output = model(**asked)
    maps = [weights.clone() for weights in output.attentions]
    for returned, weights in zip(collector.calls(output, forward_of(model, inputs)), maps, strict=True):
        call = calls.call(returned)
        assert not isinstance(call, str), call
        batch, heads, queries, keys = weights.shape
        group = heads // call.key.shape[1]
        scores = call.scaling * call.query.float() @ call.key.float().repeat_interleave(group, 1).mT
        scores = scores + (0 if call.bias is None else call.bias)
        visible = call.mask.visible(slice(0, batch), slice(0, queries), slice(0, keys))
        found = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        real = torch.ones(batch, queries, dtype=torch.bool) if call.real is None else call.real
        rows = real[:, None, :, None].expand_as(found)
        torch.testing.assert_close(found[rows], weights[rows], rtol=1e-4, atol=2e-5)
        has_bias = name in ("bloom", "mpt", "mpnet") or "alibi" in name
        assert (call.bias is not None) == has_bias


@pytest.mark.parametrize(("name", "times"), [("bloom", 1.0), ("mpt", 1.0), ("falcon_alibi", 2 / 8**0.5)])
def test_the_bias_is_alibi_with_its_slopes(name: str, times: float) -> None:
    """Press et al. 2022: slopes 2^(−8h/H); Falcon adds it twice, with its scores and in its mask, each time over √d."""
    model, inputs = tiny(name)
    collector, calls = Collector(model), OwnCalls(model)
    asked, _ = collector.ask((), inputs)
    with following(model, calls.take), torch.no_grad():
        output = model(**asked)
    for returned in collector.calls(output, forward_of(model, inputs)):
        call = calls.call(returned)
        assert not isinstance(call, str), call
        assert call.bias is not None
        slopes = torch.tensor([2.0 ** -(2 * head) for head in (1, 2, 3, 4)])
        wanted = (times * slopes)[None, :, None, None].expand(len(call.bias), 4, 24, 23)
        torch.testing.assert_close(call.bias.diff(dim=-1), wanted, rtol=1e-5, atol=1e-5)


def forward_of(model: nn.Module, inputs: dict[str, Any]) -> Any:
    from sinkscope.hooks import Forward

    return Forward.of(model, (), inputs)


def padded(ids: Tensor, side: str = "left") -> dict[str, Tensor]:
    """The second row with padding on a side."""
    mask = torch.ones_like(ids)
    mask[1, slice(0, 6) if side == "left" else slice(18, 24)] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("name", OWN)
def test_every_observer_reads_them(name: str) -> None:
    model, inputs = tiny(name)
    observers = [one for one in every() if type(one).__name__ != "ExpertPeaks"]
    with torch.no_grad():
        plain = model(**inputs).logits
        with observe(model, *observers) as seen:
            logits = model(**inputs).logits
    assert torch.equal(plain, logits)
    assert not any("forward" in vars(module) for module in model.modules())
    measurement = seen.measurement()
    assert measurement.record["not_measured"] == {}
    names = {"query_norm", "cos_query_key", "max_logit", "key_vectors", "output_norm", "sink_output_norm"}
    assert names <= set(measurement.data)
    assert bool(measurement.data["output_norm"].notnull().all())


@pytest.mark.parametrize("name", OWN)
def test_norms_of_a_padded_row_are_those_of_the_row_alone(name: str) -> None:
    model, inputs = tiny(name)
    given = padded(inputs["input_ids"][:2])
    alone: dict[str, Tensor] = {"input_ids": inputs["input_ids"][1:2, 6:]}
    if name in ("gptj", "codegen", "gpt_neo", "xglm", *(falcon for falcon in OWN if falcon.startswith("falcon"))):
        given["position_ids"] = (given["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        alone["position_ids"] = given["position_ids"][1:, 6:]
    observers = [AttentionReceived(), QueryKeyValueNorms(), HeadOutputs(), MaximalLogits(), SinkUpdate()]
    together, single = (measure(model, each, observers).data for each in (given, alone))
    for kind in ("query_norm", "key_norm", "value_norm", "output_norm", "sink_output_norm"):
        found = together[kind].values[1]
        wanted = single[kind].values[0]
        if "position" in together[kind].dims:
            assert bool((found[..., 18:] != found[..., 18:]).all())
            found = found[..., :18]
        torch.testing.assert_close(torch.from_numpy(found), torch.from_numpy(wanted), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_step_by_step_reads_the_same(name: str) -> None:
    model, inputs = tiny(name)
    ids, observers = inputs["input_ids"][:, :8], (AttentionReceived(), QueryKeyValueNorms(), HeadOutputs())
    whole = measure(model, ids, list(observers)).data
    with observe(model, *observers) as seen, torch.no_grad():
        output = model(ids[:, :5], use_cache=True)
        for step in range(5, 8):
            output = model(ids[:, step : step + 1], past_key_values=output.past_key_values, use_cache=True)
    measurement = seen.measurement()
    assert measurement.record["not_measured"] == {}
    for kind in ("query_norm", "key_norm", "value_norm", "output_norm"):
        assert float(abs(measurement.data[kind] - whole[kind]).max()) < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_read(name: str) -> None:
    if reason := OWN[name].obstacle("eager"):
        pytest.skip(reason)
    model = OWN[name].build(dtype=torch.bfloat16)
    record = measure(model, OWN[name].inputs(), [AttentionReceived(), QueryKeyValueNorms()]).record
    assert record["not_measured"] == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("convbert", "2 softmaxes"),
        ("nystromformer", "the output of its heads is not the sum of its values"),
        ("layoutlmv3", "what is added is not the position bias it is given"),
        ("deberta_v2", "its queries, keys and values are made elsewhere"),
    ],
)
def test_what_does_not_make_the_map_is_left_out_with_the_reason(name: str, reason: str) -> None:
    model, inputs = tiny(name)
    if name == "layoutlmv3" and has_attention(model):
        pytest.skip("its attention is that of transformers' interface, from 5.24 on")
    measurement = measure(model, inputs, [AttentionReceived(), QueryKeyValueNorms()])
    assert "query_norm" not in measurement.data
    said = measurement.record["not_measured"]["QueryKeyValueNorms"]
    assert reason in said
    assert "layer '" in said


def test_scores_to_which_something_of_the_content_is_added_are_left_out() -> None:
    measurement = measure(DISENTANGLED.build(), DISENTANGLED.inputs(), [AttentionReceived(), QueryKeyValueNorms()])
    assert "query_norm" not in measurement.data
    assert "what is added is not the position bias" in measurement.record["not_measured"]["QueryKeyValueNorms"]


def test_a_map_that_is_not_the_softmax_of_the_scores_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny("gpt_neo")
    kind = type(next(iter(own_attention(model))))
    original = kind.forward

    def other_map(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        output, weights = original(self, *args, **kwargs)
        return output, 0.9 * weights + 0.1 * torch.eye(weights.shape[-1])

    monkeypatch.setattr(kind, "forward", other_map)
    measurement = measure(model, inputs, [AttentionReceived(), QueryKeyValueNorms()])
    assert "query_norm" not in measurement.data
    said = measurement.record["not_measured"]["QueryKeyValueNorms"]
    assert "the softmax of its scores is not the map that the model returned" in said


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("kind", ["query", "key", "value"])
def test_an_edit_of_a_projection_is_the_same_edit_of_its_weight(name: str, kind: str) -> None:
    model, inputs = tiny(name)
    one = next(each for each in projections(model) if each.kind == kind)
    from sinkscope.hooks import Passes

    with ExitStack() as stack, torch.no_grad():
        passes = Passes(model)
        passes.attach(stack)
        one.edit_output(lambda made: 1.5 * made, passes, stack)
        edited = model(**inputs).logits
    rows = slice(None) if one.columns is None else one.columns
    with torch.no_grad():
        plain = model(**inputs).logits
        for parameter in one.module.parameters():
            parameter[rows] *= 1.5
        torch.testing.assert_close(edited, model(**inputs).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(edited, plain, atol=1e-4)
