"""What a host cannot do for an operation, found before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention import AttentionSpec, Causal, Full, Kernel, Window
from sinkscope.attention.masks import describe, leaves
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Layer, attention_layers
from sinkscope.model.attached.config import attachment_of
from sinkscope.model.attached.families import FAMILIES, HostFamily, family_of

RELATIVE = (Causal, Full, Window)  # masks that need no more than the distance of two tokens


def layers_to_equip(model: nn.Module, spec: AttentionSpec) -> dict[nn.Module, Layer]:
    """The attention layers of a model that can take this operation.

    Raises `UnsupportedModelError` where it cannot, saying why, and `InputError` for a model that has one already.
    """
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(
            f"an operation is attached to a transformers model, not to a {type(model).__name__}; one that is to be "
            "compiled or wrapped takes it before"
        )
    family = family_of(model)
    if (attached := attachment_of(model.config)) is not None:
        raise InputError(f"this model has an operation attached ({attached}): detach it first")
    layers = attention_layers(model)
    for reason in _obstacles(model, family, layers, spec):
        raise UnsupportedModelError(f"family '{model.config.model_type}': {reason}")
    return layers


def _obstacles(
    model: PreTrainedModel, family: HostFamily, layers: dict[nn.Module, Layer], spec: AttentionSpec
) -> Iterator[str]:
    yield from _structure(model, layers)
    if spec.decay is not None:
        yield "a forgetting gate must keep something in the cache, which only lab models do"
    if spec.difference is not None:
        yield "differential attention cuts heads in two, which only lab models do"
    yield from _before(family, spec)
    yield from _masks(model, spec)


def _structure(model: PreTrainedModel, layers: dict[nn.Module, Layer]) -> Iterator[str]:
    if cross := next((layer.name for layer in layers.values() if layer.crosses), None):
        yield f"'{cross}' is cross-attention, for which no operation is defined"
    holders = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if any(module.config is not model.config for module in (*holders, *layers)):
        yield f"its parts have configurations of their own: attach to a part of one of {', '.join(FAMILIES)}"


def _before(family: HostFamily, spec: AttentionSpec) -> Iterator[str]:
    if spec.query_key is not None and family.normalizes:
        yield "it normalizes queries and keys itself"
    if spec.acts_before and family.projections is None:
        yield "queries, keys and values come from one map, so nothing can act on one of them before rotation or cache"


def _masks(model: PreTrainedModel, spec: AttentionSpec) -> Iterator[str]:
    if not all(isinstance(mask, RELATIVE) for mask in leaves(spec.mask)):
        yield (
            f"the mask '{describe(spec.mask)}' needs positions in a row or documents, which it does not pass on; its "
            "mask (causal, padding, window, packed documents) stays in force, and a window can be added"
        )
    if spec.first_key is not None:
        yield "a first key's logit must know where rows begin, which its mask does not say; a sink logit need not"
    if any(slot.kind == "suffix" for slot in spec.slots):
        if getattr(model.config, "sliding_window", None) is not None:
            yield "StableMask counts the tokens before a query, which a sliding window hides"
        if not all(getattr(module, "is_causal", False) for module in attention_layers(model)):
            yield "StableMask is for causal attention"
    if getattr(model.config, "attn_logit_softcapping", None) is not None and (
        isinstance(spec.similarity, Kernel) or spec.temperature is not None
    ):
        yield "its softcap bounds plain scaled scores: no feature map, no temperature"
