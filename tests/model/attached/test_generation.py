"""Decoding with every cache of the host is the full forward, one token after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import sinkscope as ss
from tests.model.attached.hosts import DECODERS, host, inputs, stir

NEW = 6


def attached(name: str, operation: str = "kv_bias") -> PreTrainedModel:
    model = host(name)
    ss.attach(model, operation, start="as_is")
    stir(model)
    return model


def scores(model: PreTrainedModel, prompt: Tensor, mask: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    """Generated tokens, and the logits of each step."""
    told = {"attention_mask": mask, "max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0} | options
    found = model.generate(prompt, output_logits=True, return_dict_in_generate=True, **told)
    return found.sequences, torch.stack(found.logits, 1)


def left_padded(name: str) -> tuple[Tensor, Tensor]:
    prompt = inputs(name)["input_ids"][:2, :11].clone()
    mask = torch.ones_like(prompt)
    prompt[1, :4], mask[1, :4] = 0, 0
    return prompt, mask


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, "dynamic") for name in DECODERS]
    + [(name, "static") for name in ("llama", "mistral", "gemma2", "gemma3_text", "gpt2")],
)
def test_generation_with_a_cache_is_generation_without(name: str, implementation: str) -> None:
    """Past the sliding window of Mistral and Gemma (5 keys), with a row that is padded on the left."""
    model = attached(name)
    prompt, mask = left_padded(name)
    tokens, steps = scores(model, prompt, mask, use_cache=False)
    cached, cached_steps = scores(model, prompt, mask, cache_implementation=implementation)
    assert torch.equal(tokens, cached)
    torch.testing.assert_close(cached_steps, steps, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_padded_row_generates_what_it_generates_alone(name: str) -> None:
    model = attached(name, "sink_logit")
    prompt, mask = left_padded(name)
    together, _ = scores(model, prompt, mask)
    alone, _ = scores(model, prompt[1:, 4:], mask[1:, 4:])
    assert torch.equal(together[1:, 4:], alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_beams_and_windows_of_the_operations_own(name: str) -> None:
    """Distances are counted right where Mistral's sliding cache has dropped the first keys."""
    spec = ss.attention.AttentionSpec(mask=ss.attention.Causal() & ss.attention.Window(4))
    model = host(name)
    assert ss.attach(model, spec).changes == ("mask (causal & window(4))",)
    prompt, mask = left_padded(name)
    for implementation in ("dynamic", "static"):
        tokens, steps = scores(model, prompt, mask, use_cache=False, num_beams=2)
        cached, cached_steps = scores(model, prompt, mask, cache_implementation=implementation, num_beams=2)
        assert torch.equal(tokens, cached)
        torch.testing.assert_close(cached_steps, steps, atol=2e-5, rtol=1e-5)
