"""The families of transformers that take an operation, and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention.sizes import Sizes
from sinkscope.errors import UnsupportedModelError


@dataclass(frozen=True)
class Projections:
    """Names of the maps to queries, keys and values, where a layer has one for each."""

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"


@dataclass(frozen=True)
class HostFamily:
    """What an attached operation has to know of a family's attention layers.

    `kv_heads`: the configuration's field for the number of key-value heads; `head_dim`: the layer's attribute for a
    head's width; `projections`: None where one map makes queries, keys and values; `normalizes`: queries and keys are
    normalized by the host before rotation.
    """

    kv_heads: str = "num_key_value_heads"
    head_dim: str = "head_dim"
    projections: Projections | None = Projections()
    normalizes: bool = False

    def sizes(self, model: PreTrainedModel, module: nn.Module, layer: int) -> Sizes:
        """The sizes of an operation for one attention layer."""
        config = model.config
        return Sizes(
            heads=config.num_attention_heads,
            kv_heads=getattr(config, self.kv_heads),
            head_dim=getattr(module, self.head_dim),
            hidden_size=config.hidden_size,
            layer=layer,
        )


_UNGROUPED = "num_attention_heads"

FAMILIES: dict[str, HostFamily] = {
    "llama": HostFamily(),
    "mistral": HostFamily(),
    "qwen2": HostFamily(),
    "qwen3": HostFamily(normalizes=True),
    "gemma": HostFamily(),
    "gemma2": HostFamily(),
    "gemma3_text": HostFamily(normalizes=True),
    "gpt2": HostFamily(kv_heads=_UNGROUPED, projections=None),
    "gpt_neox": HostFamily(kv_heads=_UNGROUPED, head_dim="head_size", projections=None),
    "opt": HostFamily(kv_heads=_UNGROUPED),
    "bert": HostFamily(
        kv_heads=_UNGROUPED, head_dim="attention_head_size", projections=Projections("query", "key", "value")
    ),
    "vit": HostFamily(kv_heads=_UNGROUPED),
}


def family_of(model: PreTrainedModel) -> HostFamily:
    """The family of a model. Raises `UnsupportedModelError` for one that is not in the table, with those that are."""
    kind = str(model.config.model_type)
    if kind not in FAMILIES:
        raise UnsupportedModelError(
            f"no operation can be attached to family '{kind}': supported are {', '.join(FAMILIES)}"
        )
    return FAMILIES[kind]
