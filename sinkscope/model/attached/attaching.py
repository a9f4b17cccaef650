"""Putting an operation on a transformers model, and taking it off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention import CATALOG, AttentionSpec, name_of, resolve
from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.hooks import attention_projections, checked_inputs
from sinkscope.model.attached.checks import chosen_layers, layers_to_equip
from sinkscope.model.attached.config import NAME, Attachment, attachment_of, become_attached, become_host, note
from sinkscope.model.attached.families import sizes_of
from sinkscope.model.attached.layer import HANDLES, equip, strip
from sinkscope.model.attached.mark import mark, unmark
from sinkscope.model.attached.shift import ordinary, outputs, shift
from sinkscope.model.attached.sink import build
from sinkscope.model.attached.start import changes, closing, unchanged
from sinkscope.model.attached.tokens import add_tokens, check_tokens, remove_tokens

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
    """Put an attention operation on attention layers of a transformers model, in place.

    Each attention module gets `.operation`, whose parameters are part of the model: moved, trained and saved with it
    (`save_pretrained`; the folder needs sinkscope to be loaded and fails loudly without). `layers`: the numbers of the
    attention layers that get it, from 0, all by default; the others attend by plain softmax, as they did. The host's
    own mask (causal, padding, window, packed documents), grouped heads, scaling, softcap and learned sink stay in
    force; a mask of the spec other than the default `Causal()` is in force beside it.

    `sink_tokens`: so many learned tokens stand in front of every sequence, at positions -n … -1 (of learned position
    tables: all in the place of the first), or as registers behind the CLS of an image model. Every token sees them,
    outputs leave them out, and a measurement counts them as positions 0 … n - 1. They change the model from the start.

    `start="unchanged"`: what can start next to unchanged does. Gates start open and value biases at zero, which changes
    rounding alone. Slots start closed, as far as they still learn: with a logit b_h = min(-8, min_t L_ht - 8), L_ht the
    log-sum-exp of a query's scores in the pass below, so that no query of it gives a slot more than 3e-4 of its mass.
    On other inputs L may be lower, above all under another first token: pass rows of the text that you train on as
    `inputs`. A starting value that was given stays. `start="as_is"`: with the operation's own starting values. `seed`
    decides random ones.

    Returns what was attached. `.changes` names the pieces that change the model from the start, as softmax-off-by-one
    does, and what starts closed or open where outputs moved all the same; `.shift` says how far logits (and
    predictions, in nats) moved, measured on `inputs` (token ids or a dict), by default on 32 rows of 8 random tokens:
    two short forward passes.

    Raises `UnsupportedModelError` for families and operations that do not fit, saying why, and leaves the model as it
    is; `InputError` for unknown names, options and impossible sizes.
    """
    if start not in get_args(Start):
        raise unknown("start", str(start), get_args(Start))
    wanted = resolve(spec)
    name = name_of(wanted)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UnsupportedModelError("the model's weights are not loaded, or kept elsewhere (meta device)")
    if (context := getattr(getattr(model, "config", None), "max_position_embeddings", None)) is not None:
        wanted = wanted.within(context)
    asked = wanted
    if start == "unchanged":
        wanted = unchanged(wanted, given=isinstance(spec, Mapping) and "name" in spec and "initial" in spec)
    chosen = chosen_layers(layers_to_equip(model, wanted), layers)
    assert isinstance(model, PreTrainedModel)
    check_tokens(model, sink_tokens)
    given, on = (ordinary(model), "random inputs") if inputs is None else (checked_inputs(model, inputs)[0], "inputs")
    before = outputs(model, given)
    attachment = install(model, wanted, name, seed, chosen, sink_tokens)
    mark(model)
    try:
        with closing(model, wanted, asked):
            after = outputs(model, given)
        moved = shift(before, after, model.get_output_embeddings() is not None, on)
    except BaseException:
        detach(model)
        raise
    found = attachment.changes
    if not found and not moved.small:
        found = tuple(slot.kind for slot in wanted.slots) or ("rounding",)
    return note(model.config, replace(attachment, changes=found, shift=moved))


def install(
    model: nn.Module,
    spec: AttentionSpec,
    name: str,
    seed: int | None = None,
    chosen: tuple[int, ...] | None = None,
    sink_tokens: int = 0,
) -> Attachment:
    """Build the operation of each layer, and only then change the model."""
    layers = layers_to_equip(model, spec)
    chosen_layers(layers, chosen)
    assert isinstance(model, PreTrainedModel)
    check_tokens(model, sink_tokens)
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
    """Take an attached operation off again: modules, attention implementation and configuration are what they were.

    What was trained in the model itself stays. Raises `InputError` where nothing is attached.
    """
    config = getattr(model, "config", None)
    attachment = None if config is None else attachment_of(config)
    if not isinstance(model, PreTrainedModel) or attachment is None:
        raise InputError("no operation is attached to this model")
    for module in list(model.modules()):
        if HANDLES in vars(module):
            strip(module)
    unmark(model)
    remove_tokens(model)
    become_host(model.config)
    model.set_attn_implementation(attachment.implementation)
