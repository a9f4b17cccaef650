"""An observer that cannot read a model leaves itself out, says so, and the rest is measured."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import LlamaForCausalLM, SiglipVisionConfig, SiglipVisionModel

from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import AttentionReceived, ExpertPeaks, HiddenNorms, measure, observe
from tests.measurement.conftest import MASKS

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97}


def several_streams() -> torch.nn.Module:
    """Gemma 3n, whose blocks pass on four streams in one tensor."""
    config = transformers.Gemma3nTextConfig(
        **SIZES,
        intermediate_size=[48, 48],
        head_dim=8,
        num_key_value_heads=2,
        layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=97,
        num_kv_shared_layers=0,
        activation_sparsity_pattern=[0.0, 0.0],
        laurel_rank=4,
    )
    return transformers.Gemma3nForCausalLM(config).eval()


@pytest.mark.parametrize("observers", [None, "all", [AttentionReceived(), HiddenNorms()]])
def test_a_stream_that_is_none_is_left_out_and_the_rest_is_measured(observers: object, ids: Tensor) -> None:
    measurement = measure(several_streams(), ids, observers)  # type: ignore[arg-type]
    assert "attention_received" in measurement.data
    assert not any("depth" in measurement.data[name].dims for name in measurement.data)
    assert "pass on no tensor" in measurement.record["not_measured"]["residual stream of decoder"]


def test_where_nothing_else_was_asked_for_it_is_an_error(ids: Tensor, tiny_llama: LlamaForCausalLM) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'gemma3n_text'.*pass on no tensor"):
        measure(several_streams(), ids, [HiddenNorms()])
    with pytest.raises(UnsupportedModelError, match="'llama' has no experts"):
        measure(tiny_llama, ids, [ExpertPeaks()])


def test_one_that_was_asked_for_by_name_is_missed_aloud(ids: Tensor, tiny_llama: LlamaForCausalLM) -> None:
    with pytest.warns(UserWarning, match="ExpertPeaks is left out: family 'llama' has no experts"):
        measurement = measure(tiny_llama, ids, [ExpertPeaks(), HiddenNorms()])
    assert set(measurement.data.data_vars) == {"hidden_norm", *MASKS}
    assert "no experts" in measurement.record["not_applicable"]["ExpertPeaks"]
    with observe(tiny_llama, ExpertPeaks(), HiddenNorms()) as seen:
        tiny_llama(ids)
    assert "no experts" in seen.measurement().record["not_applicable"]["ExpertPeaks"]


def test_blocks_that_return_lists_have_a_stream(ids: Tensor) -> None:
    torch.manual_seed(0)
    config = transformers.OpenAIGPTConfig(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = transformers.OpenAIGPTLMHeadModel(config).eval()
    measurement = measure(model, ids % 97, [HiddenNorms(), AttentionReceived()])
    with torch.no_grad():
        states = model(ids % 97, output_hidden_states=True).hidden_states
    wanted = torch.stack([state.norm(dim=-1) for state in states], 1)
    torch.testing.assert_close(torch.from_numpy(measurement.data["hidden_norm"].values), wanted)


def test_a_row_without_tokens_says_nothing_and_changes_nothing(ids: Tensor, tiny_llama: LlamaForCausalLM) -> None:
    mask = torch.ones_like(ids)
    mask[1] = 0
    measurement = measure(tiny_llama, {"input_ids": ids, "attention_mask": mask}, "all")
    alone = measure(tiny_llama, ids[:1], "all").data
    assert "non_finite" not in measurement.record
    per_sample = [name for name in alone.data_vars if "sample" in alone[name].dims and alone[name].dtype.kind == "f"]
    assert len(per_sample) > 20
    for name in per_sample:
        found = measurement.data[name]
        assert bool(np.isnan(found.isel(sample=1)).all()), name
        np.testing.assert_allclose(found.isel(sample=0), alone[name].isel(sample=0), atol=1e-4, rtol=1e-4, err_msg=name)


OWN = "attention by code of its own, of which nothing is read"


def test_attention_of_another_package_is_named(ids: Tensor, tiny_llama: LlamaForCausalLM) -> None:
    """A tower of timm (Perception LM, Gemma 3n) is no layer of transformers: it has no numbers, and not in silence."""
    model = copy.deepcopy(tiny_llama)
    assert measure(model, ids).record["not_measured"] == {}
    foreign = type("Attention", (torch.nn.Linear,), {"__module__": "timm.layers.attention"})
    model.tower = torch.nn.ModuleList([foreign(4, 4), foreign(4, 4)])
    said = {"tower.*": f"is timm's Attention, {OWN}"}
    assert measure(model, ids).record["not_measured"] == said


def test_attention_that_no_layer_holds_is_named() -> None:
    """SigLIP pools with torch's own attention, SAM's tower calls SDPA itself: no numbers, and not in silence."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    pixels = torch.randn(1, 3, 16, 16)
    pooling = SiglipVisionModel(SiglipVisionConfig(**sizes, image_size=16, patch_size=8)).eval()
    head = {"head": f"is SiglipMultiheadAttentionPoolingHead, {OWN}"}
    assert measure(pooling, {"pixel_values": pixels}).record["not_measured"] == head
    linear = type("LinearAttention", (torch.nn.Linear,), {"__module__": SiglipVisionModel.__module__})
    pooling.mixers = torch.nn.ModuleList([linear(4, 4), linear(4, 4)])
    kept = measure(pooling, {"pixel_values": pixels}).record["not_measured"]
    assert kept == head | {"mixers.*": f"is LinearAttention, {OWN}"}


def test_what_a_measured_layer_is_made_of_is_not_named(ids: Tensor, tiny_llama: LlamaForCausalLM) -> None:
    model = copy.deepcopy(tiny_llama)
    inner = type("DotProductAttention", (torch.nn.Identity,), {})
    for layer in model.model.layers:
        layer.self_attn.inner = inner()
    assert measure(model, ids).record["not_measured"] == {}
