"""The diagonal of attention maps, against whole maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionBefore, SelfAttention, measure, observe
from sinkscope.measurement.observers.diagonal import WindowMass
from sinkscope.measurement.observers.received import GivenTo
from sinkscope.model import LabConfig, LabForCausalLM
from tests.measurement.conftest import build
from tests.measurement.observers.naive import ALL, close, look


@pytest.mark.parametrize("name", ALL)
def test_it_is_the_diagonal_of_the_whole_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, SelfAttention())
    for index, layer in enumerate(layers):
        found, weights = data["self_attention"][:, index], layer.weights
        if layer.call.layer.stack == "cross":  # no key is a query's own
            assert bool(found.isnull().all())
            continue
        if name == "lab:sigmoid":
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-8)  # of a row whose scores are all far below zero
        close(found, weights.diagonal(dim1=-2, dim2=-1).mean(-1))


def lab(attention: str, **options) -> LabForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_key_value_heads": 2, "intermediate_size": 48}
    return LabForCausalLM(LabConfig(vocab_size=31, attention=attention, **sizes, **options)).eval()


@pytest.mark.parametrize("attention", ["softmax", "first_key_logit", "latent_sinks", "exclusive", "softpick"])
@torch.no_grad()
def test_padding_and_cache_leave_it_alone(attention: str) -> None:
    model, ids = lab(attention), torch.randint(31, (2, 90), generator=torch.Generator().manual_seed(1))
    maps = torch.stack(model(ids, output_attentions=True, use_cache=False).attentions, 1)
    wanted = maps.diagonal(dim1=-2, dim2=-1).mean(-1)
    close(measure(model, ids, [SelfAttention()]).data["self_attention"], wanted)
    padded = {"input_ids": torch.nn.functional.pad(ids, (3, 2)), "attention_mask": torch.zeros(2, 95)}
    padded["attention_mask"][:, 3:93] = 1
    close(measure(model, padded, [SelfAttention()]).data["self_attention"], wanted)
    with observe(model, SelfAttention()) as seen:
        cache = model(ids[:, :70], use_cache=True).past_key_values
        for step in (slice(70, 71), slice(71, 90)):
            cache = model(ids[:, step], past_key_values=cache).past_key_values
    close(seen.measurement().data["self_attention"], wanted)


def test_a_metric_per_head_beside_the_sink() -> None:
    model, ids = lab("exclusive"), torch.randint(31, (2, 20), generator=torch.Generator().manual_seed(1))
    measured = measure(model, ids, "all")
    wanted = measured.data["self_attention"].mean("sample").values.ravel()
    assert abs(measured.heads()["self_attention"].to_numpy() - wanted).max() < 1e-6


@pytest.mark.parametrize("distance", [0, 1, 7])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "lab:sigmoid", "lab:kv_bias"])
def test_what_is_given_to_the_token_before_is_a_diagonal_of_the_map(name: str, distance: int, monkeypatch) -> None:
    data, layers = look(name, monkeypatch, AttentionBefore(distance))
    for index, layer in enumerate(layers):
        weights = layer.weights
        if name == "lab:sigmoid":
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-8)
        wanted = weights.diagonal(-distance, dim1=-2, dim2=-1)
        close(data["attention_before"][:, index, :, distance:], wanted)
        assert (data["attention_before"][:, index, :, :distance] == 0).all()


def test_padding_between_learned_tokens_and_the_text_is_no_distance() -> None:
    model, ids = lab("softmax", sink_tokens=1), torch.randint(31, (1, 6), generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(ids, (4, 0))
    mask = (torch.arange(10) >= 4).long()[None]
    observers = [AttentionBefore(1), WindowMass(0, 3)]
    alone = measure(model, ids, observers).data
    found = measure(model, {"input_ids": padded, "attention_mask": mask}, observers).data
    for name in ("attention_before", "window_mass"):
        np.testing.assert_allclose(found[name][..., :7], alone[name], atol=1e-5)


def test_a_distance_looks_back() -> None:
    with pytest.raises(InputError, match="distance = -1"):
        AttentionBefore(-1)


def test_queries_of_an_earlier_cache_have_no_number() -> None:
    model, ids = build("llama"), torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(1))
    whole = measure(model, ids, [WindowMass(2, 2), AttentionBefore(1), GivenTo(0)]).data
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :5], past_key_values=cache)
        with observe(model, WindowMass(2, 2), AttentionBefore(1), GivenTo(0)) as seen:
            model(ids[:, 5:], past_key_values=cache)
    for name in ("window_mass", "attention_before", "given_to"):
        found = seen.measurement().data[name]
        assert bool(found[..., :5].isnull().all()), name
        np.testing.assert_allclose(found[..., 5:], whole[name][..., 5:], atol=1e-5)
