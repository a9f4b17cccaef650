"""Putting an operation on a transformers model, and taking it off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention import AttentionSpec, Operation, name_of, resolve
from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.model.attached.checks import layers_to_equip
from sinkscope.model.attached.config import NAME, Attachment, attachment_of, become_attached, become_host
from sinkscope.model.attached.families import family_of
from sinkscope.model.attached.layer import HANDLES, equip, strip
from sinkscope.model.attached.start import changes, unchanged

Start = Literal["unchanged", "as_is"]


def attach(
    model: nn.Module,
    spec: AttentionSpec | Mapping[str, Any] | str,
    *,
    start: str = "unchanged",
    seed: int | None = None,
) -> Attachment:
    """Put an attention operation on every attention layer of a transformers model, in place.

    Each attention module gets `.operation`, whose parameters are part of the model: moved, trained and saved with it
    (`save_pretrained`; the folder needs sinkscope to be loaded and fails loudly without). The host's own mask (causal,
    padding, window, packed documents), grouped heads, scaling and softcap stay in force; a mask of the spec other than
    the default `Causal()` is in force beside it. `start="unchanged"`: what can start without changing the model does
    (gates open, slots closed, value bias zero); `"as_is"`: with the operation's own starting values. `seed` decides
    random ones. Returns what was attached; `.changes` names the pieces that change the model from the start, as
    softmax-off-by-one does.

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
    return install(model, unchanged(wanted) if start == "unchanged" else wanted, name, seed)


def install(model: nn.Module, spec: AttentionSpec, name: str, seed: int | None = None) -> Attachment:
    """Build the operation of each layer, and only then change the model."""
    layers = layers_to_equip(model, spec)
    assert isinstance(model, PreTrainedModel)
    family, operations = family_of(model), []
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        for number, module in enumerate(layers):
            like = next(module.parameters())
            operation = Operation(spec, family.sizes(model, module, number))
            operations.append(operation.to(device=like.device, dtype=model.dtype).train(module.training))
    attachment = Attachment(name, spec, str(model.config._attn_implementation), changes(spec))
    for module, operation in zip(layers, operations, strict=True):
        equip(module, operation, family.projections)
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
    become_host(model.config)
    model.set_attn_implementation(attachment.implementation)
