"""Attach an operation to a transformers model, and detach it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention import (
    CATALOG,
    AttentionSpec,
    Causal,
    CosineScores,
    DotProduct,
    Full,
    Linear,
    Operation,
    SuffixSlot,
    Window,
    name_of,
    operation_of,
    resolve,
)
from sinkscope.attention.masks import describe, leaves
from sinkscope.errors import InputError, UnsupportedModelError, check_whole, is_whole, unknown
from sinkscope.hooks import Layer, attention_layers, attention_projections, checked_inputs, has_attention, head_width
from sinkscope.model.attached.config import NAME, Attachment, attachment_of, become_attached, become_host, note
from sinkscope.model.attached.families import normalizes, sink_of, sizes_of
from sinkscope.model.attached.guard import check_equal, readings
from sinkscope.model.attached.layer import HANDLES, build, equip, strip
from sinkscope.model.attached.mark import mark, unmark
from sinkscope.model.attached.shift import ordinary, outputs, shift
from sinkscope.model.attached.start import changes, closing, unchanged
from sinkscope.model.attached.tokens import add_tokens, check_tokens, learned_tokens, remove_tokens

RELATIVE = (Causal, Full, Window)  # masks that depend only on the distance of two tokens


def layers_to_equip(model: nn.Module, spec: AttentionSpec) -> dict[nn.Module, Layer]:
    """The attention layers of a model that can take this operation.

    Raises `UnsupportedModelError` with the reason if it cannot, and `InputError` for a model that already has one.
    """
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(
            f"an operation is attached to a transformers model, not to a {type(model).__name__}; one that is to be "
            "compiled or wrapped takes it before"
        )
    if (attached := attachment_of(model.config)) is not None:
        raise InputError(f"this model has an operation attached ({attached}): detach it first")
    if not has_attention(model):
        raise UnsupportedModelError(
            f"family '{model.config.model_type}' has no layer that attends through transformers' AttentionInterface, "
            "which is where an operation is attached"
        )
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
    if not isinstance(chosen, Iterable):
        raise InputError(f"layers = {chosen!r}: expected their numbers, such as [{chosen!r}]")
    numbers = tuple(chosen)
    for number in numbers:
        if not is_whole(number) or number >= len(layers):
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
    if any(operation_of(module) is not None for module in layers):
        yield "its layers have operations already, which its configuration chooses (LabConfig.attention)"
    if cross := next((layer.name for layer in layers.values() if layer.crosses), None):
        yield f"'{cross}' is cross-attention, for which no operation is defined"
    holders = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    # One configuration object becomes that of an attached model in place; parts with another would not see it.
    if any(module.config is not model.config for module in (*holders, *layers)):
        yield "its parts have configurations of their own: attach to a part, such as the `language_model` in it"


def _before(model: PreTrainedModel, layers: dict[nn.Module, Layer], spec: AttentionSpec) -> Iterator[str]:
    if spec.query_key is not None and any(normalizes(module) for module in layers):
        yield "it normalizes queries and keys itself"
    if isinstance(spec.query_key, CosineScores) and any(_scales(module) for module in layers):
        yield "it scales scores by something other than 1 / √d, which the lengths of the cosine's queries allow for"
    for module in layers if spec.acts_before else ():
        kinds = {made.kind for made in attention_projections(model, module)}
        if lacking := {"query", "key", "value"} - kinds:
            yield f"no linear map to {', '.join(sorted(lacking))} was found, on which the operation would act"


def _scales(module: nn.Module) -> bool:
    scaling = getattr(module, "scaling", None)
    return isinstance(scaling, float) and abs(scaling * head_width(module) ** 0.5 - 1) > 1e-6


def _own_sink(layers: dict[nn.Module, Layer], spec: AttentionSpec) -> Iterator[str]:
    competes = spec.normalizer.couples_keys and not isinstance(spec.normalizer, Linear)
    if not competes and any(sink_of(module) is not None for module in layers):
        yield (
            f"it has a learned sink of its own, another logit of the softmax, and under '{spec.normalizer.kind}' "
            "weights nothing competes with it"
        )


def _masks(model: PreTrainedModel, spec: AttentionSpec) -> Iterator[str]:
    # A host's tokens are numbered by their columns, padding included, so only differences of these numbers are certain.
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


PLAIN = CATALOG["softmax"]  # of the layers that were not chosen
Start = Literal["unchanged", "as_is"]


def attach(
    model: nn.Module,
    spec: AttentionSpec | Mapping[str, Any] | str,
    *,
    layers: Iterable[int] | None = None,
    sink_tokens: int = 0,
    start: str = "unchanged",
    seed: int | None = None,
    inputs: Any = None,
) -> Attachment:
    """Attach an attention operation to attention layers of a transformers model, in place.

    Each attention module gets `.operation`, whose parameters are part of the model: moved, trained and saved with it
    (`save_pretrained`; the folder needs sinkscope to be loaded and fails loudly without; a model whose norms have no
    scales cannot be marked in this way, and is not saved). The host's own mask (causal, padding, window, packed
    documents), grouped heads, scaling, softcap and learned sink stay in force; a mask of the spec other than the
    default `Causal()` applies in addition.

    `start="unchanged"` starts as close to the original model as possible. Gates start open and value biases at zero,
    which changes only rounding. Slots start closed, as far as they can still learn: with a logit b_h = min(-8, min_t
    L_ht - 8), L_ht the log-sum-exp of a query's scores in the pass below, so that no query of it gives a slot more than
    3e-4 of its mass. On other inputs L may be lower, especially with another first token: pass rows of your training
    text as `inputs`. Explicit starting values are kept.

    Returns what was attached. `.changes` names the pieces that change the model from the start, as softmax-off-by-one
    does, and what starts closed or open where outputs moved all the same; `.shift` says how far logits (and
    predictions, in nats) moved, measured on `inputs` in two short forward passes. Before that the host is tried: with
    plain softmax in all its layers, its outputs on four rows of random inputs must be its own (`guard`).

    Args:
        model: Any transformers model whose attention layers take an operation; changed in place.
        spec: An operation: a value, its data, or a name of the catalog.
        layers: Numbers of the attention layers that get it, from 0; the others keep plain softmax. None: all.
        sink_tokens: Number of learned tokens before every sequence, at positions -n … -1 (with learned position tables:
            all at the first position), or as registers after the CLS of an image model. Every token sees them, outputs
            omit them, and a measurement counts them as positions 0 … n - 1. They change the model from the start.
        start: "unchanged", or "as_is": the operation's own starting values.
        seed: Decides random starting values; None: torch's current state does.
        inputs: Token ids or a dict, for `start` and `.shift`; None: 32 rows of 8 random tokens, or
            random images for a model of images.

    Raises `UnsupportedModelError` for families and operations that do not fit, saying why, and leaves the model as it
    is; `InputError` for unknown names, options and impossible sizes.
    """
    if start not in get_args(Start):
        raise unknown("start", str(start), get_args(Start))
    if seed is not None:
        check_whole("seed", seed, 0)
    wanted = resolve(spec)
    name = name_of(wanted)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UnsupportedModelError("the model's weights are not loaded, or kept elsewhere (meta device)")
    if (context := getattr(getattr(model, "config", None), "max_position_embeddings", None)) is not None:
        wanted = wanted.within(context)
    asked = wanted
    if start == "unchanged":
        wanted = unchanged(wanted, keep_slots=isinstance(spec, Mapping) and "name" in spec and "initial" in spec)
    chosen = chosen_layers(layers_to_equip(model, wanted), layers)
    assert isinstance(model, PreTrainedModel)
    check_tokens(model, sink_tokens)
    probe, on = (ordinary(model), "random inputs") if inputs is None else (checked_inputs(model, inputs)[0], "inputs")
    check_host(model, probe)
    before = outputs(model, probe)
    attachment = install(model, wanted, name, seed, chosen, sink_tokens)
    mark(model)
    try:
        # One pass closes the slots and measures the change: each slot is closed before its operation attends.
        with closing(model, wanted, asked):
            after = outputs(model, probe)
        moved = shift(before, after, model.get_output_embeddings() is not None, on)
    except BaseException:
        detach(model)
        raise
    changed = attachment.changes
    if not changed and not moved.small:
        changed = tuple(slot.kind for slot in wanted.slots) or ("rounding",)
    return note(model.config, replace(attachment, changes=changed, shift=moved))


ROWS = 4  # of eight tokens, on which the guard compares


def check_host(model: PreTrainedModel, probe: dict[str, Any]) -> None:
    """Raises `UnsupportedModelError` for a host that computes something else with softmax attached than before."""
    tried = {name: rows[:ROWS] for name, rows in ordinary(model).items()} if "input_ids" in probe else probe
    before = readings(model, tried)
    install(model, PLAIN, "softmax")
    try:
        check_equal(model, before, lambda: readings(model, tried))
    finally:
        detach(model)


def install(
    model: nn.Module,
    spec: AttentionSpec,
    name: str,
    seed: int | None = None,
    chosen: tuple[int, ...] | None = None,
    sink_tokens: int = 0,
) -> Attachment:
    """Build the operation of each layer, and only then change the model.

    Args:
        model, spec, seed, sink_tokens: As in `attach`.
        name: What the operation is called in the configuration.
        chosen: Numbers of the layers that get it, ascending; None: all.
    """
    layers = layers_to_equip(model, spec)
    chosen_layers(layers, chosen)
    assert isinstance(model, PreTrainedModel)
    check_tokens(model, sink_tokens)
    if sink_tokens and (counting := [slot.kind for slot in spec.slots if isinstance(slot, SuffixSlot)]):
        raise UnsupportedModelError(
            f"'{counting[0]}' counts the tokens of the text, and attached layers count sink tokens with them: only lab "
            "models tell them apart"
        )
    operations = []
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        for number, module in enumerate(layers):
            like = next(module.parameters())
            whose = spec if chosen is None or number in chosen else PLAIN
            operation = build(whose, sizes_of(model, module, number), module)
            operations.append(operation.to(device=like.device, dtype=model.dtype).train(module.training))
        if sink_tokens:
            add_tokens(model, sink_tokens)
    changed = (*changes(spec), "sink tokens") if sink_tokens else changes(spec)
    before = str(model.config._attn_implementation)
    attachment = Attachment(name, spec, before, changed, chosen, sink_tokens)
    for module, operation in zip(layers, operations, strict=True):
        made = attention_projections(model, module) if operation.spec.acts_before else []
        equip(module, operation, {projection.kind: projection for projection in made})
    model.set_attn_implementation(NAME)
    become_attached(model.config, attachment)
    return attachment


def detach(model: nn.Module) -> None:
    """Detach an operation: restores modules, attention implementation and configuration.

    Trained weights of the model itself are kept. Raises `InputError` if nothing is attached.
    """
    config = getattr(model, "config", None)
    attachment = None if config is None else attachment_of(config)
    if not isinstance(model, PreTrainedModel) or attachment is None:
        raise InputError("no operation is attached to this model")
    # A list first: stripping removes operations, which are modules themselves.
    for module in list(model.modules()):
        if HANDLES in vars(module):
            strip(module)
    unmark(model)
    remove_tokens(model)
    become_host(model.config)
    model.set_attn_implementation(attachment.implementation)


Part = Literal["operation", "everything"]


def trainable_only(model: nn.Module, part: str = "operation") -> dict[str, nn.Parameter]:
    """Train only the attention operations of a model; `"everything"` makes all parameters trainable again.

    For attached models (including attached sink tokens) and lab models. Returns the trainable parameters by name.
    Raises `InputError` if the model has no operation, or one without parameters.
    """
    if part not in get_args(Part):
        raise unknown("part of a model", str(part), get_args(Part))
    parameters = dict(model.named_parameters())
    chosen = parameters if part == "everything" else _of_operations(model, parameters)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
    return chosen


def _of_operations(model: nn.Module, parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    config = getattr(model, "config", None)
    attached = set(learned_tokens(model)) if config is not None and attachment_of(config) is not None else set()
    paths = [path for path, module in model.named_modules() if isinstance(module, Operation) or module in attached]
    if not paths:
        raise InputError("no attention operation is attached to this model: attach one first")
    chosen = {
        name: parameter for name, parameter in parameters.items() if any(name.startswith(f"{path}.") for path in paths)
    }
    if not chosen:
        raise InputError("the attention operation of this model learns nothing, so nothing would be trained")
    return chosen
