"""What a forward pass was given: padding, cache, first tokens."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.probes.structure.prefix import sink_tokens

Axis = Literal["tokens", "memory", "vision", "audio"]
MAIN_INPUTS = (
    "input_ids",
    "inputs_embeds",
    "decoder_input_ids",
    "decoder_inputs_embeds",
    "pixel_values",
    "input_features",
)


@dataclass(frozen=True, eq=False)
class Forward:
    """One forward pass of an observed model, before it ran.

    `seen`: tokens in the cache; `real`: per token axis, True for real tokens over everything so far (no entry: all
    real). `tokens` are what the model reads or writes, `memory` is what the encoder of an encoder-decoder gives.
    `prefix`: learned tokens that the model puts before its `ids`; they are real, and in the cache once it is filled.
    """

    batch: int
    seen: int
    cache: Cache | None
    ids: Int[Tensor, "batch position"] | None
    real: Mapping[Axis, Bool[Tensor, "batch _"]] = field(default_factory=dict)
    prefix: int = 0

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Forward:
        """Read the arguments of `model(*args, **kwargs)`."""
        given = _arguments(model, args, kwargs)
        cache = given.get("past_key_values")
        cache = cache if isinstance(cache, Cache) else None
        main = next((given[name] for name in MAIN_INPUTS if isinstance(given.get(name), Tensor)), None)
        main = main if main is not None else next((v for v in given.values() if isinstance(v, Tensor)), None)
        if main is None:
            raise InputError("the observed model was called without tensors")
        twofold = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
        prefix = "decoder_" if twofold else ""
        masks: dict[Axis, Any] = {
            "tokens": given.get(prefix + "attention_mask"),
            "memory": given.get("attention_mask" if twofold else "encoder_attention_mask"),
        }
        real = {axis: real for axis, mask in masks.items() if (real := _padding(mask)) is not None}
        learned = sink_tokens(model)
        if learned and "tokens" in real:
            real["tokens"] = functional.pad(real["tokens"], (learned, 0), value=True)
        ids = given.get(prefix + "input_ids")
        return cls(
            batch=main.shape[0],
            seen=0 if cache is None else int(cache.get_seq_length()),
            cache=cache,
            ids=ids if isinstance(ids, Tensor) else None,
            real=real,
            prefix=learned,
        )


def _arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name; those that go through *args or **kwargs keep the names they have."""
    bound = inspect.signature(model.forward).bind_partial(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif bound.signature.parameters[name].kind is not inspect.Parameter.VAR_POSITIONAL:
            named[name] = value
    return named


def _padding(mask: Any) -> Bool[Tensor, "batch position"] | None:
    """True for real tokens; None where the mask hides none, or is no two-dimensional padding mask."""
    if not isinstance(mask, Tensor) or mask.ndim != 2 or bool(mask.all()):
        return None
    return mask.bool()


def cache_of(output: Any) -> Cache | None:
    """The cache that a forward pass returned, from a model output or a tuple."""
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else ()
    return next((value for value in values if isinstance(value, Cache)), None)
