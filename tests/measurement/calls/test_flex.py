"""Models whose attention runs through flex attention are measured as they are with eager attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig

from sinkscope.measurement import AttentionReceived, measure, observe

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
}
CONFIGS = {"causal": LlamaConfig(**SIZES), "windows": MistralConfig(**SIZES, sliding_window=7, head_dim=8)}
pytestmark = [
    pytest.mark.slow,  # torch._dynamo is imported
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask"),
]


@pytest.mark.parametrize("name", CONFIGS)
def test_flex_attention_is_read_as_eager_attention_is(name: str) -> None:
    model = built(CONFIGS[name])
    ids = torch.randint(3, 97, (2, 33))
    padding = torch.ones_like(ids)
    padding[0, :5] = 0
    inputs = {"input_ids": ids, "attention_mask": padding}
    eager = measure(model, inputs).data
    model.set_attn_implementation("flex_attention")
    flex = measure(model, inputs).data
    assert set(eager) == set(flex)
    for variable in eager:
        assert np.allclose(eager[variable], flex[variable], rtol=1e-4, atol=1e-5, equal_nan=True), variable


@pytest.mark.release
def test_generation_with_flex_attention_is_observed_and_unchanged() -> None:
    model = built(CONFIGS["causal"])
    model.set_attn_implementation("flex_attention")
    # With a third token, flex attention that is not compiled differs from itself on some CPUs, observed or not.
    prompt, options = torch.randint(3, 97, (1, 6)), {"max_new_tokens": 2, "do_sample": False}
    plain = model.generate(prompt, **options)
    with observe(model, AttentionReceived()) as seen:
        assert torch.equal(model.generate(prompt, **options), plain)
    assert seen.measurement().data.sizes["position"] == 7


def built(config: PretrainedConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
