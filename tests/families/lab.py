"""The same contract for the lab model, under every operation of the catalog."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import CATALOG
from sinkscope.model.config import LabConfig
from sinkscope.model.lab import LabForCausalLM
from tests.families.contract import Row, compare
from tests.families.inputs import VOCABULARY
from tests.families.reference import Map
from tests.families.registry import FAMILIES

SHARPNESS = 5.0  # on queries and keys, which takes attention far from uniform
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def tiny(attention: str, seed: int = 0) -> LabForCausalLM:
    """A random lab model under an operation of the catalog, what it learns far from where it starts."""
    torch.manual_seed(seed)
    config = LabConfig(vocab_size=VOCABULARY, intermediate_size=48, attention=attention, **TINY)
    model = LabForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(SHARPNESS)
            if "operation" in name:
                parameter.normal_()
            if name.endswith("query_key.scale"):  # of cosines
                parameter.mul_(SHARPNESS)
            if name.endswith("key_map"):  # of 128 slots: smaller keys, so that tokens keep some of the mass
                parameter.mul_(0.01)
    return model


def check(attention: str) -> Row:
    """Measure the lab model and compare with the weights that its naive reference writes out."""
    model, inputs = tiny(attention), FAMILIES["llama"].inputs()
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    maps = [_as_measured(weights, CATALOG[attention].metric_weights) for weights in maps]
    causal = [Map(weights, torch.ones_like(weights, dtype=torch.bool).tril()) for weights in maps]
    return compare(f"lab: {attention}", "its own", model, inputs, {"decoder": causal})


def _as_measured(weights: Float[Tensor, "batch heads query key"], metric_weights: str) -> Tensor:
    """The weights of which a sink rate is made: raw, or with rows that sum to one."""
    if metric_weights == "raw":
        return weights
    return weights.abs() / (weights.abs().sum(-1, keepdim=True) + 1e-8)
