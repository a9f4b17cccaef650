"""Which parameter Muon takes and which it leaves to AdamW, over lab models with every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sinkscope.attention import CATALOG
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training.optimizers import Muon
from sinkscope.training.optimizers.muon import Combined

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
PROJECTIONS = {f"self_attn.{name}_proj.weight" for name in "qkvo"}
FEED_FORWARD = {f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
BLOCK = PROJECTIONS | FEED_FORWARD
MAMBA = {f"mamba.mixer.{name}_proj.weight" for name in ("in", "x", "dt", "out")}
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "plain": ({}, BLOCK),
    "sink tokens": ({"sink_tokens": 3}, BLOCK),
    "T5's table": ({"position": "relative_t5"}, BLOCK),
    "learned positions": ({"position": "learned"}, BLOCK),
    "tied": ({"tie_word_embeddings": True}, BLOCK),
    "grouped queries": ({"num_key_value_heads": 1}, BLOCK),
    "heads added": ({"head_combination": "add"}, BLOCK),
    "not gated": ({"ffn": "gelu"}, BLOCK - {"mlp.gate_proj.weight"}),
    "no feed-forward": ({"ffn": "none"}, PROJECTIONS),
    "layer norms": ({"norm": "layernorm", "norm_placement": "sandwich"}, BLOCK),
    "sigma": (
        {"weight_reparam": "sigma"},
        {name.replace(".weight", ".parametrizations.weight.original") for name in BLOCK},
    ),
    "Mamba": ({"attention_every": 2}, BLOCK | MAMBA),
    "shared keys": ({"kv_layers": [0, 0]}, BLOCK),
}
MAPS_OF = {  # what an operation itself learns that maps activations to activations; all else it learns is no map
    "gated_elementwise": {"weight"},
    "gated_value": {"weight"},
    "kernel_mlp": {"first", "second"},
    "kernel_mlp_normalized": {"first", "second"},
}


def build(**options: Any) -> LabForCausalLM:
    torch.manual_seed(0)
    return LabForCausalLM(LabConfig(**{**SIZES, **options}))


def taken(model: nn.Module) -> tuple[set[str], set[str]]:
    """The names of the parameters under Muon and under AdamW, as the built optimizer has them, without the layer's
    number."""
    names = {id(parameter): name.removeprefix("model.layers.") for name, parameter in model.named_parameters()}
    optimizer = Muon(lr=0.01).build(model)
    assert isinstance(optimizer, Combined)
    found = {
        type(part): {names[id(p)] for group in part.param_groups for p in group["params"]} for part in optimizer.parts
    }
    muon, adamw = found[torch.optim.Muon], found[torch.optim.AdamW]
    assert muon | adamw == set(names.values())
    assert not muon & adamw
    return {name.partition(".")[2] if name[0].isdigit() else name for name in muon}, adamw


@pytest.mark.parametrize("name", MODELS)
def test_muon_takes_the_linear_layers_of_the_blocks_and_nothing_else(name: str) -> None:
    options, expected = MODELS[name]
    assert taken(build(**options))[0] == expected


@pytest.mark.parametrize("name", CATALOG)
def test_what_an_operation_learns_is_a_map_only_where_it_says_so(name: str) -> None:
    muon, _ = taken(build(attention=name))
    own = {one for one in muon if ".operation." in one}
    assert muon - own == BLOCK
    assert {one.rpartition(".")[2] for one in own} == MAPS_OF.get(name, set())


def test_tables_move_as_under_adamw() -> None:
    """A step of Muon moves sink tokens, position tables and `A_log` exactly as AdamW alone would."""
    from sinkscope.training.optimizers import AdamW

    options = {"sink_tokens": 2, "attention_every": 2, "attention": "kv_bias", "position": "relative_t5"}
    one, other = build(**options), build(**options)
    for model, config in ((one, Muon(lr=0.01)), (other, AdamW(lr=0.01))):
        optimizer = config.build(model)
        ids = torch.arange(12).view(1, 12)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    theirs = dict(other.named_parameters())
    same = {name for name, parameter in one.named_parameters() if torch.equal(parameter, theirs[name])}
    for part in ("sink_tokens", "position.table", "A_log", "operation", "norm.weight", "embed_tokens", "lm_head"):
        assert any(part in name for name in same), part
    assert not any(name.endswith("q_proj.weight") for name in same)
