"""What a host cannot do for an operation, found before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention import AttentionSpec, Causal, DotProduct, Full, Linear, Window
from sinkscope.attention.masks import describe, leaves
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Layer, attention_layers, attention_projections
from sinkscope.model.attached.config import attachment_of
from sinkscope.model.attached.families import FAMILIES, check_family, normalizes, sink_of

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
    check_family(model)
    if (attached := attachment_of(model.config)) is not None:
        raise InputError(f"this model has an operation attached ({attached}): detach it first")
    layers = attention_layers(model)
    for reason in _obstacles(model, layers, spec):
        raise UnsupportedModelError(f"family '{model.config.model_type}': {reason}")
    return layers


def chosen_layers(layers: dict[nn.Module, Layer], chosen: Iterable[int] | None) -> tuple[int, ...] | None:
    """The numbers of the layers that get the operation, in order; None for all.

    Raises `InputError` for none at all, and for one that the model does not have.
    """
    if chosen is None:
        return None
    numbers = tuple(chosen)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(layers):
            raise InputError(f"layers: no attention layer {number!r}; the model has 0 to {len(layers) - 1}")
    if not numbers:
        raise InputError("layers: empty, so nothing would be attached; leave it out for all layers")
    return tuple(sorted(set(numbers)))


def _obstacles(model: PreTrainedModel, layers: dict[nn.Module, Layer], spec: AttentionSpec) -> Iterator[str]:
    yield from _structure(model, layers)
    if spec.decay is not None:
        yield "a forgetting gate must keep something in the cache, which only lab models do"
    if spec.difference is not None:
        yield "differential attention cuts heads in two, which only lab models do"
    yield from _before(model, layers, spec)
    yield from _own_sink(layers, spec)
    yield from _masks(model, spec)


def _structure(model: PreTrainedModel, layers: dict[nn.Module, Layer]) -> Iterator[str]:
    if cross := next((layer.name for layer in layers.values() if layer.crosses), None):
        yield f"'{cross}' is cross-attention, for which no operation is defined"
    holders = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if any(module.config is not model.config for module in (*holders, *layers)):
        yield f"its parts have configurations of their own: attach to a part of one of {', '.join(FAMILIES)}"


def _before(model: PreTrainedModel, layers: dict[nn.Module, Layer], spec: AttentionSpec) -> Iterator[str]:
    if spec.query_key is not None and any(normalizes(module) for module in layers):
        yield "it normalizes queries and keys itself"
    for module in layers if spec.acts_before else ():
        found = {made.kind for made in attention_projections(model, module)}
        if lacking := {"query", "key", "value"} - found:
            yield f"no linear map to {', '.join(sorted(lacking))} was found, on which the operation would act"


def _own_sink(layers: dict[nn.Module, Layer], spec: AttentionSpec) -> Iterator[str]:
    competes = spec.normalizer.couples_keys and not isinstance(spec.normalizer, Linear)
    if not competes and any(sink_of(module) is not None for module in layers):
        yield (
            f"it has a learned sink of its own, a logit beside those of the tokens, and under '{spec.normalizer.kind}' "
            "weights nothing competes with it"
        )


def _masks(model: PreTrainedModel, spec: AttentionSpec) -> Iterator[str]:
    if not all(isinstance(mask, RELATIVE) for mask in leaves(spec.mask)):
        yield (
            f"the mask '{describe(spec.mask)}' needs positions in a row or documents, which it does not pass on; its "
            "mask (causal, padding, window, packed documents) stays in force, and a window can be added"
        )
    if spec.first_key is not None:
        yield "a first key's logit must know where rows begin, which only lab models do; a sink logit need not"
    if any(slot.kind == "suffix" for slot in spec.slots):
        if getattr(model.config, "sliding_window", None) is not None:
            yield "StableMask counts the tokens before a query, which a sliding window hides"
        if not all(getattr(module, "is_causal", False) for module in attention_layers(model)):
            yield "StableMask is for causal attention"
    if getattr(model.config, "attn_logit_softcapping", None) is not None and (
        not isinstance(spec.similarity, DotProduct) or spec.temperature is not None
    ):
        yield "its softcap bounds plain scaled scores: no feature map, no temperature"
