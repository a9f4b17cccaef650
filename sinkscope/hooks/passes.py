"""One forward pass of a model: its samples, its padding, whether it starts or continues a cache, and when it ends."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache

from sinkscope.attention import Tokens
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.modules import family, is_encoder_decoder, sink_tokens

Axis = Literal["tokens", "memory", "vision", "audio", "queries"]
Edit = Callable[[Tensor], Tensor]
MAIN_INPUTS = (
    "input_ids",
    "inputs_embeds",
    "decoder_input_ids",
    "decoder_inputs_embeds",
    "pixel_values",
    "input_features",
)
PATCHING = ("blt",)
TEXT = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "labels")
TEXT_MASKS = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask", "global_attention_mask")


def axes(stack: str, encoder_decoder: bool) -> tuple[Axis, Axis]:
    """Token axes of the queries and keys of a stack, in a model that is an encoder-decoder or not."""
    if stack == "vision":
        return "vision", "vision"
    if stack == "audio":
        return "audio", "audio"
    if stack == "queries":
        return "queries", "queries"
    if stack == "queries_cross":
        return "queries", "vision"
    if stack == "cross":
        return "tokens", "memory"
    return ("memory", "memory") if stack == "encoder" and encoder_decoder else ("tokens", "tokens")


@dataclass(frozen=True, eq=False)
class Forward:
    """What a forward pass was given.

    `seen`: tokens in the cache; `lengths`: per token axis, tokens so far, where the inputs tell; `real`: of those axes,
    True for real tokens over everything so far (no entry: all real). `tokens` are what the model reads or writes,
    `memory` is what the encoder of an encoder-decoder gives. `elsewhere`: axes with padding in a mask over something
    else, such as the samples of a sound, of which a layer's own mask alone tells its tokens; `other_masks`: names of
    masks with padding that belong to no axis known here; `text_alone`: whether nothing but text was given. `prefix`:
    learned tokens that the model puts before its `ids`; they are real, and in the cache once it is filled.
    """

    batch: int
    seen: int
    cache: Cache | None
    ids: Int[Tensor, "batch position"] | None
    real: Mapping[Axis, Bool[Tensor, "batch _"]] = field(default_factory=dict)
    prefix: int = 0
    lengths: Mapping[Axis, int] = field(default_factory=dict)
    elsewhere: frozenset[Axis] = frozenset()
    other_masks: tuple[str, ...] = ()
    text_alone: bool = False

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Forward:
        """Read the arguments of `model(*args, **kwargs)`. Raises `InputError` where no tensor is among them."""
        given = arguments(model, args, kwargs)
        cache = given.get("past_key_values")
        cache = cache if isinstance(cache, Cache) else None
        main = next((given[name] for name in MAIN_INPUTS if isinstance(given.get(name), Tensor)), None)
        main = main if main is not None else next((v for v in given.values() if isinstance(v, Tensor)), None)
        if main is None:
            raise InputError("the model was called without tensors")
        writes = is_encoder_decoder(model)
        prefix = "decoder_" if writes else ""
        own = _length(given, prefix)
        masks: dict[Axis, Any] = {
            "tokens": given.get(prefix + "attention_mask", None if writes or own is not None else _other_mask(given)),
            "memory": given.get("attention_mask" if writes else "encoder_attention_mask"),
        }
        padding = {axis: real for axis, mask in masks.items() if (real := _padding(mask)) is not None}
        learned = sink_tokens(model)
        if learned and "tokens" in padding:
            padding["tokens"] = functional.pad(padding["tokens"], (learned, 0), value=True)
        seen = 0 if cache is None else int(cache.get_seq_length())
        lengths: dict[Axis, int] = {}
        if own is not None:
            lengths["tokens"] = (seen or learned) + own
        if (memory := _memory_length(given, writes)) is not None:
            lengths["memory"] = memory
        if padding and family(model) in PATCHING:
            raise UnsupportedModelError(
                f"family '{family(model)}' cuts its text into patches, padding as well: give samples of one length"
            )
        ids = given.get(prefix + "input_ids")
        return cls(
            batch=main.shape[0],
            seen=seen,
            cache=cache,
            ids=ids if isinstance(ids, Tensor) and ids.ndim == 2 and len(ids) == len(main) else None,
            real={axis: real for axis, real in padding.items() if axis in lengths},
            prefix=learned,
            lengths=lengths,
            elsewhere=frozenset(padding.keys() - lengths.keys()),
            text_alone=all(name in TEXT for name, value in given.items() if isinstance(value, Tensor)),
            other_masks=tuple(name for name in given if name.endswith("mask") and _hides(name, given[name])),
        )

    def stated(self, axis: Axis, total: int) -> bool:
        """Whether the inputs tell which of a layer's `total` tokens are real: the model's sequence is what it sees."""
        return self.lengths.get(axis) == total

    def start(self, axis: Axis) -> int:
        """Absolute position of the first column of this pass: only the tokens that a model writes are cached."""
        return self.seen if axis == "tokens" else 0

    def tokens(self, axis: Axis, start: int, stop: int, device: torch.device) -> Tokens:
        """The tokens of columns `start` … `stop` − 1, counted from the first cached one; padding behind all of them.

        Raises `UnsupportedModelError` where the model's mask is over something else than these tokens.
        """
        if axis in self.elsewhere:
            raise self._unknown(stop - start)
        real = self.real.get(axis)
        if real is None:
            return Tokens.plain(stop - start, start=start, device=device)
        real = functional.pad(real.to(device), (0, max(0, stop - real.shape[1])))
        return Tokens.padded(real).part(slice(start, stop))

    def at(self, axis: Axis, positions: tuple[int, ...] | None, hidden: Tensor) -> Bool[Tensor, "_ position"]:
        """Which columns of hidden states (batch, position, width) hold these positions; None: every real token."""
        start = self.start(axis)
        if axis in self.real and not self.stated(axis, start + hidden.shape[1]):
            raise self._unknown(hidden.shape[1])
        tokens = self.tokens(axis, start, start + hidden.shape[1], hidden.device)
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.valid is None else tokens.valid
        return real if positions is None else real & torch.isin(tokens.order, tokens.order.new_tensor(positions))

    def _unknown(self, columns: int) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"the attention mask given to the model is not over the {columns} tokens of this stack, so which of them "
            "are real cannot be told: give samples of one length, without a mask"
        )


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass under way: how often each of its parts was used so far, and what was noted as done.

    `masks`: what the first block of a stack was given as its attention mask, where blocks are read.
    """

    forward: Forward
    uses: dict[object, int] = field(default_factory=dict)
    noted: set[object] = field(default_factory=set)
    masks: dict[str, Tensor | None] = field(default_factory=dict)

    def use(self, owner: object) -> int:
        """How often `owner` was used before in this pass."""
        count = self.uses.get(owner, 0)
        self.uses[owner] = count + 1
        return count

    def note(self, owner: object) -> None:
        """Note that `owner` did its part (`Passes.require`)."""
        self.noted.add(owner)


Opened = Callable[[Pass, tuple[Any, ...], dict[str, Any]], Any]
Closed = Callable[[Pass, Any], Any]


class Passes:
    """The forward passes of a model, one after the other.

    `opened(pass, args, kwargs)` runs before each and may return other (args, kwargs); `closed(pass, output)` runs after
    each that ended without an error and may return another output.
    """

    def __init__(self, model: nn.Module, opened: Opened | None = None, closed: Closed | None = None) -> None:
        self.model = model
        self.under_way: Pass | None = None
        self._last: Pass | None = None
        self._handled: BaseException | None = None
        self._opened, self._closed = opened, closed
        self._required: list[tuple[Callable[[Pass], bool], str]] = []

    def attach(self, stack: ExitStack, *, first: bool = False) -> None:
        """Follow the passes for as long as `stack` is open; `first`: end them before the caller's own hooks do."""
        begin = self.model.register_forward_pre_hook(self._begin, with_kwargs=True)
        end = self.model.register_forward_hook(self._end, always_call=True, prepend=first)
        stack.callback(begin.remove)
        stack.callback(end.remove)
        stack.callback(self._forget)

    def _forget(self) -> None:
        """Let go of who was told of passes: they hold this object, and a circle stays until the collector runs."""
        self._opened = self._closed = None

    @property
    def now(self) -> Pass:
        """The pass under way; while a backward pass recomputes a checkpoint, the one that it belongs to.

        Raises `InputError` where there is none.
        """
        found = self._last if self.recomputing else self.under_way
        if found is None:
            raise InputError("the passes of a model are followed: call that model itself, not a part of it")
        return found

    @property
    def recomputing(self) -> bool:
        """Whether a backward pass runs parts of a finished pass again (gradient checkpointing)."""
        return self.under_way is None and torch._C._current_graph_task_id() != -1

    def require(self, met: Callable[[Pass], bool], otherwise: str, stack: ExitStack) -> None:
        """Until `stack` closes, a pass of which `met` is not true ends in an `UnsupportedModelError(otherwise)`.

        A change that nothing came by looks just like one without an effect.
        """
        required = met, otherwise
        self._required.append(required)
        stack.callback(self._required.remove, required)

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun = Pass(Forward.of(model, args, kwargs))
        changed = None if self._opened is None else self._opened(begun, args, kwargs)
        self.under_way = self._last = begun
        self._handled = sys.exception()
        return changed

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        done, self.under_way = self.under_way, None
        # An error in the model leaves no output. One in another hook, such as a refused pass, is being handled now.
        if done is None or output is None or sys.exception() is not self._handled:
            return None
        for met, otherwise in self._required:
            if not met(done):
                raise UnsupportedModelError(otherwise)
        return None if self._closed is None else self._closed(done, output)


def arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name; those that go through *args or **kwargs keep the names they have."""
    names = _by_position(getattr(model.forward, "__func__", None))
    if len(args) <= len(names):  # binding takes as long as a small layer
        return dict(zip(names, args, strict=False)) | dict(kwargs)
    bound = parameters(model).bind_partial(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif bound.signature.parameters[name].kind is not inspect.Parameter.VAR_POSITIONAL:
            named[name] = value
    return named


def parameters(model: nn.Module) -> inspect.Signature:
    """The signature of a model's forward, read once for each class: reading it takes as long as a small layer."""
    function = getattr(model.forward, "__func__", None)
    return inspect.signature(model.forward) if function is None else _without_self(function)


@lru_cache(maxsize=256)
def _by_position(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """The names under which a method takes arguments by position; none where it is no plain method."""
    if function is None:
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, one in _without_self(function).parameters.items() if one.kind in kinds)


@lru_cache(maxsize=256)
def _without_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _other_mask(given: Mapping[str, Any]) -> Tensor | None:
    """The mask of a model that reads no ids and calls it by another name, such as `padding_mask`."""
    masks = (value for name, value in given.items() if name.endswith("_mask") and isinstance(value, Tensor))
    return next((mask for mask in masks if mask.ndim == 2), None)


def _length(given: Mapping[str, Any], prefix: str) -> int | None:
    """Tokens that the model is given, as ids or as embeddings; None where it is given something else."""
    found = (given.get(prefix + name) for name in ("input_ids", "inputs_embeds"))
    return next((value.shape[1] for value in found if isinstance(value, Tensor)), None)


def _memory_length(given: Mapping[str, Any], writes: bool) -> int | None:
    """Tokens that cross-attention sees, where they are given or are those that the encoder is given."""
    encoded = given.get("encoder_outputs" if writes else "encoder_hidden_states")
    states = encoded if isinstance(encoded, Tensor) else encoded[0] if encoded else None
    if isinstance(states, Tensor) and states.ndim == 3:
        return states.shape[1]
    return _length(given, "") if writes else None


def _hides(name: str, mask: Any) -> bool:
    """Whether an argument is a mask over samples that hides a part of one, of another kind than those of text."""
    return name not in TEXT_MASKS and "head" not in name and _padding(mask) is not None


def _padding(mask: Any) -> Bool[Tensor, "batch position"] | None:
    """True for real tokens; None where the mask hides none, or is no two-dimensional padding mask."""
    if not isinstance(mask, Tensor) or mask.ndim != 2 or bool(mask.all()):
        return None
    return mask.bool()
