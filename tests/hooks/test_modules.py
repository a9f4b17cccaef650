"""Which modules are attention layers, and which stack they belong to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention, eager_attention_forward

from sinkscope.hooks.modules import attention_layers, block_lists, blocks, dispatches, model_digest, text_config
from tests.families.registry import FAMILIES
from tests.families.sweep.build import build
from tests.measurement.conftest import lab_model


class Extended(LlamaAttention):
    def forward(self, *args: object, **kwargs: object) -> object:
        return super().forward(*args, **kwargs)


class Replaced(LlamaAttention):
    def forward(self, hidden_states: torch.Tensor, **kwargs: object) -> object:
        return hidden_states, None


def test_a_forward_that_extends_one_that_dispatches_dispatches() -> None:
    config = FAMILIES["llama"].build().config
    assert dispatches(LlamaAttention(config, 0))
    assert dispatches(Extended(config, 0))
    assert not dispatches(Replaced(config, 0))
    assert not dispatches(nn.Linear(2, 2))


class Residual(nn.Module):
    """A learned query over the blocks so far, at each token: attention whose keys are no tokens (inkling2)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config, self.query = config, nn.Parameter(torch.zeros(config.hidden_size))

    def forward(self, blocks: torch.Tensor) -> torch.Tensor:
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        return attend(self, self.query.expand(len(blocks), 1, -1, -1), blocks, blocks, None, scaling=1.0)[0]


def test_attention_over_blocks_is_no_attention_over_tokens() -> None:
    config = FAMILIES["llama"].build().config
    assert not dispatches(Residual(config))
    projecting = Residual(config)
    projecting.k_proj = nn.Linear(config.hidden_size, config.hidden_size)  # learned queries that pool tokens
    assert dispatches(projecting)


STACKS = {
    "llama": ["decoder"] * 2,
    "opt": ["decoder"] * 2,
    "jamba": ["decoder"] * 2,
    "gpt_oss": ["decoder"] * 2,
    "bert": ["encoder"] * 2,
    "modernbert": ["encoder"] * 2,
    "vit": ["vision"] * 2,
    "dinov2": ["vision"] * 2,
    "t5": ["encoder"] * 2 + ["decoder", "cross"] * 2,
    "bart": ["encoder"] * 2 + ["decoder", "cross"] * 2,
}


@pytest.mark.parametrize("name", STACKS)
def test_stacks(name: str) -> None:
    assert [layer.stack for layer in attention_layers(FAMILIES[name].build()).values()] == STACKS[name]


def test_blocks_are_the_elements_of_the_outermost_list() -> None:
    model = FAMILIES["jamba"].build()
    assert [block.module for block in blocks(model)] == list(model.model.layers)
    model = FAMILIES["t5"].build()
    assert [block.module for block in blocks(model)] == [*model.encoder.block, *model.decoder.block]
    assert [block.stack for block in blocks(model)] == ["encoder"] * 2 + ["decoder"] * 2


def test_counts_of_layers_by_part_name_no_stack() -> None:
    """LXMERT has a number for each of its parts, in one dictionary."""
    model = build("lxmert")
    assert isinstance(model.config.num_hidden_layers, dict)
    assert block_lists(model) == {}


@pytest.mark.slow
def test_a_model_of_several_texts_has_no_configuration_for_one() -> None:
    """MusicGen reads words and writes codes of sounds."""
    assert text_config(build("musicgen")) is None
    model = FAMILIES["llama"].build()
    assert text_config(model) is model.config
    assert text_config(nn.Linear(2, 2)) is None


def test_lab_layers_carry_their_own_numbers() -> None:
    layers = attention_layers(lab_model("sigmoid")).values()
    assert [(layer.name, layer.index) for layer in layers] == [
        ("model.layers.0.self_attn", 0),
        ("model.layers.1.self_attn", 1),
    ]


def test_a_digest_is_of_weights_and_configuration_whoever_wrote_it(tmp_path: Path) -> None:
    model = FAMILIES["llama"].build().eval()
    before = model_digest(model)
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"transformers_version": "5.1.0"}))
    assert model_digest(LlamaForCausalLM.from_pretrained(tmp_path)) == before
    model.config.rope_parameters["rope_theta"] *= 2
    assert model_digest(model) != before
    model.config.rope_parameters["rope_theta"] /= 2
    model.model.embed_tokens.weight.data[0, 0] += 0.5
    assert model_digest(model) != before
