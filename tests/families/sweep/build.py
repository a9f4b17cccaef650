"""A tiny random model of any model type, with attention far from uniform, and inputs that it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from tests.families.family import PROJECTIONS
from tests.families.sweep import zoo
from tests.families.sweep.corrections import CORRECTIONS
from tests.families.sweep.given import recipes
from tests.families.sweep.parts import Given, Part
from tests.families.sweep.shrink import WIDTH, shrunk

PLACES = re.compile(r"(image|audio|speech|video|media|img)\w*(token_id|token_index)$")
EDGES = re.compile("start|end|bos|eos|begin")
COUNTED = re.compile(r"tokens\D*(\d+)\D+?features\D*(\d+)", re.I)
SHARP = 2.0


def build(kind: str, host: str = "eager", seed: int = 0) -> PreTrainedModel:
    """A random model of fp32 in eval mode: matrices as wide as their rows, queries and keys sharpened."""
    config = shrunk(kind, CORRECTIONS.get(kind))
    config.use_cache = False
    cls = zoo.model_class(kind)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in cls._from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"its smallest configuration has {size / 1e6:.0f} million parameters")
    torch.manual_seed(seed)
    model = cls._from_config(config, attn_implementation=host, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and len(parameter) and parameter.is_floating_point():
                parameter.normal_(generator=generator).div_((parameter.numel() / len(parameter)) ** 0.5)
                if PROJECTIONS.search(name):
                    parameter.mul_(SHARP)
            elif name.endswith("sinks"):
                parameter.normal_(generator=generator)
    return model


LARGEST = 40_000_000


def inputs(model: PreTrainedModel, name: str | None = None) -> Given:
    """The richest inputs that the model takes, or those of that name. Raises what the richest one raised."""
    reason: Exception | None = None
    for given in recipes(model):
        if name is None or given.name == name:
            try:
                return _paddable(model, _fitted(model, given))
            except Exception as error:
                reason = reason or error
    raise reason or ValueError("no inputs are known for it")


def _paddable(model: PreTrainedModel, given: Given) -> Given:
    """The inputs, of which only words are padded, or nothing, where the model does not take it otherwise."""
    only_words = replace(given, parts=tuple(part if part.words else replace_mask(part) for part in given.parts))
    for tried in (given, only_words):
        try:
            with torch.no_grad():
                for padding in tried.paddings[1:]:
                    model(**tried.padded(padding))
            return tried
        except Exception:
            continue
    return replace(given, fixed=True)


def replace_mask(part: Part) -> Part:
    """The same input, never padded; models that want its mask get one that hides nothing."""
    if type(part) is not Part:
        return part
    return replace(part, short=0) if part.always else replace(part, mask=None)


def _fitted(model: PreTrainedModel, given: Given) -> Given:
    """The inputs with as many places in the text as the model finds features for."""
    for _ in range(3):
        try:
            with torch.no_grad():
                output = first(model(**given.whole()))
            if not bool(torch.isfinite(output).all()):
                raise ValueError("its outputs are not finite")
            return given
        except Exception as error:
            fitted = _with_places(model, given, str(error))
            if fitted is None:
                raise
            given = fitted
    raise ValueError("its places for other modalities cannot be counted")


def _with_places(model: PreTrainedModel, given: Given, message: str) -> Given | None:
    counted = COUNTED.search(message)
    text = next((part for part in given.parts if part.name == "input_ids"), None)
    if counted is None or text is None:
        return None
    features = int(counted.group(2)) // len(text.values)
    features = features // WIDTH if features > 100 else features  # some messages count numbers, not places
    found = _places(model.config)
    kind = "audio" if re.search("audio|speech", message, re.I) else "image"
    names = sorted(
        found,
        key=lambda name: (not name.startswith(kind), name.startswith("video"), bool(EDGES.search(name)), name),
    )
    token = next((found[name] for name in names), None)
    if token is None or not 0 < features < 100:
        return None
    ids = torch.cat([text.values[:, :2], torch.full((len(text.values), features), token), text.values[:, 2:]], 1)
    extra = dict(given.extra)
    from tests.families.sweep.given import parameters

    taken: set[str] = parameters(model)
    parts = [replace(part, values=ids) if part is text else part for part in given.parts]
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in taken:
            parts = [part for part in parts if part.name != name]
            parts.append(Part(name, (ids == token).long(), 1, "attention_mask", text.short))
    return replace(given, parts=tuple(parts), extra=extra)


def _places(config: PreTrainedConfig) -> dict[str, int]:
    """Ids that stand for other modalities, by their names, of a configuration and its parts."""
    parts = [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
    found = {name: value for part in parts for name, value in _places(part).items()}
    own = {name: getattr(config, name) for name in dir(config) if PLACES.search(name)}
    return found | {name: value for name, value in own.items() if isinstance(value, int)}


def first(output: Any) -> Tensor:
    """The first tensor of an output: its logits or states."""
    values = (
        output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else [output]
    )
    for value in values:
        if isinstance(value, (tuple, list)) and value and isinstance(value[0], Tensor):
            value = value[0]
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            return value
    raise ValueError("its output has no tensor")
