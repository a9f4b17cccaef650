"""Lengths and angles against loops over queries and keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.measurement import HiddenNorms, QueryKeyAngles, QueryKeyValueNorms, observing
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.reading import read_call
from tests.families import contract
from tests.families.registry import FAMILIES


def collected(name: str, host: str, monkeypatch: pytest.MonkeyPatch, *observers: object) -> tuple:
    family = FAMILIES[name]
    calls: list[AttentionCall] = []
    monkeypatch.setattr(observing, "read_call", lambda *args: calls.append(read_call(*args)) or calls[-1])
    measurement, _ = contract.observed(family.build(host), family.inputs(), *observers)
    return measurement.data, calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "host"), [("llama", "sdpa"), ("llama", "eager"), ("mistral", "sdpa"), ("bert", "sdpa")]
)
def test_angles_are_means_of_cosines(name: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, calls = collected(name, host, monkeypatch, QueryKeyAngles())
    for layer, call in enumerate(calls):
        visible = call.mask.visible(slice(0, 3), slice(0, 24), slice(0, 24)).expand(3, 1, 24, 24)
        for head in range(4):
            for key in range(24):
                vector = call.key[0, head // call.group, key]
                seeing = [query for query in range(24) if query != key and visible[0, 0, query, key]]
                cosines = [
                    float(call.query[0, head, query] @ vector / call.query[0, head, query].norm() / vector.norm())
                    for query in seeing
                ]
                found = float(data["cos_query_key"][0, layer, head, key])
                assert np.isnan(found) if not cosines else abs(found - np.mean(cosines)) < 1e-5


def test_cross_attention_counts_every_query(monkeypatch: pytest.MonkeyPatch) -> None:
    data, calls = collected("t5", "eager", monkeypatch, QueryKeyAngles())
    index = data["stack"].values.tolist().index("cross")
    call = next(call for call in calls if call.layer.stack == "cross")
    query, key = (torch.nn.functional.normalize(part, dim=-1) for part in (call.query, call.key))
    wanted = (query @ key.mT).mean(-2)
    assert np.abs(data["cos_query_key"].values[:, index] - wanted.numpy()).max() < 1e-5


def test_norms_belong_to_query_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    data, calls = collected("llama", "sdpa", monkeypatch, QueryKeyValueNorms())
    for layer, call in enumerate(calls):
        for head in range(4):
            group = head // call.group
            for name, vectors in (
                ("query", call.query[:, head]),
                ("key", call.key[:, group]),
                ("value", call.value[:, group]),
            ):
                wanted = vectors.square().sum(-1).sqrt().numpy()
                np.testing.assert_allclose(data[f"{name}_norm"].values[:, layer, head], wanted, rtol=1e-6)


def test_values_may_be_narrower_than_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    data, calls = collected("deepseek_v3", "sdpa", monkeypatch, QueryKeyValueNorms())
    assert calls[0].key.shape[-1] != calls[0].value.shape[-1]
    np.testing.assert_allclose(data["value_norm"].values[:, 0], calls[0].value.norm(dim=-1).numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2", "jamba", "bert"])
def test_hidden_norms_are_the_residual_stream_before_the_final_norm(name: str) -> None:
    family = FAMILIES[name]
    model, inputs = family.build("eager"), family.inputs()
    measurement, _ = contract.observed(model, inputs, HiddenNorms())
    hidden = measurement.data["hidden_norm"].values
    model.config.tie_last_hidden_states = False
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    assert hidden.shape[1] == len(states)
    for depth, state in enumerate(states[:-1]):
        np.testing.assert_allclose(hidden[:, depth], state.norm(dim=-1).numpy(), rtol=1e-5)
    blocks: list[torch.Tensor] = []
    last = next(module for name, module in reversed(list(model.named_modules())) if name.endswith((".1", ".3")))
    last.register_forward_hook(lambda _, __, output: blocks.append(output[0] if isinstance(output, tuple) else output))
    model(**inputs)
    np.testing.assert_allclose(hidden[:, -1], blocks[0].detach().norm(dim=-1).numpy(), rtol=1e-5)
