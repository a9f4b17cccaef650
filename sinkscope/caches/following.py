"""A cache that follows its model: before each pass it learns the padding, and refuses a pass that it would get wrong.

transformers gives a cache layer keys and values only, neither mask nor positions. The rest comes from a hook on the
model's forward that the cache sets when it is created and that is removed when the cache is freed. So an unmodified
`generate(..., past_key_values=cache)` is followed too.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from sinkscope.attention import Causal, Full, Operation
from sinkscope.attention.combination import Combination
from sinkscope.caches import saving
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    Forward,
    arguments,
    cache_name,
    check_continued,
    family,
    given_cache,
    is_encoder_decoder,
    parameters,
    text_config,
    unwrapped,
)
from sinkscope.model import LabForCausalLM
from sinkscope.model.shared_kv import KEYLESS

GROWING = (DynamicLayer, DynamicSlidingWindowLayer)  # transformers' own, which append new keys


@dataclass(frozen=True, eq=False)
class Coming:
    """What the next pass brings to every layer.

    `seen`: columns before it, including padding and learned sink tokens, as `get_seq_length` counts them. `queries`:
    the columns it adds. `pads`: left padding of each row, (batch,), None if no row has any. `batch`: its rows.
    """

    seen: int
    queries: int
    batch: int
    pads: Int[Tensor, " batch"] | None = None

    @property
    def total(self) -> int:
        """Columns after the pass."""
        return self.seen + self.queries


class FollowedLayer:
    """What the cache layers of this package add to transformers' own methods.

    `coming` is set before each pass and consumed by `update`, so a pass that was not followed is refused. `places`: the
    column of the whole sequence that each key returned by the last `update` came from, (batch, 1 or kv_heads, stored);
    −1 for none. Observers of attention calls and writers of masks read it.
    """

    coming: Coming | None = None

    @property
    def places(self) -> Int[Tensor, "batch heads stored"]:
        raise NotImplementedError

    def expect(self, coming: Coming) -> None:
        """Record what the next pass brings, before masks are made."""
        self.coming = coming

    @property
    def uncroppable(self) -> str | None:
        """Why the newest tokens cannot be removed; None if they can."""
        return "cannot take tokens back"

    def state(self) -> dict[str, Any]:
        """The layer's content, as tensors and plain values in lists and dictionaries."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Restore such a state."""
        raise NotImplementedError

    def taken(self, key_states: Tensor) -> Coming:
        """What this pass brings; each `update` calls it once. Raises `InputError` if the pass was not followed."""
        coming, self.coming = self.coming, None
        if coming is None or coming.queries != key_states.shape[2] or coming.batch != key_states.shape[0]:
            raise InputError(
                "this cache follows the model that it was made for: call that model itself, neither a part of it nor "
                "another model"
            )
        if torch.is_grad_enabled() and key_states.requires_grad:
            raise InputError("this cache overwrites its content, so gradients cannot pass through it: use no_grad")
        return coming


class FollowingCache(DynamicCache):
    """Base class of the caches here: transformers' layer for each kind of attention, followed. Subclasses replace
    layers.

    Raises `UnsupportedModelError` for a model that does not use such a cache.
    """

    is_compileable = False
    drops = True
    """Whether keys may be dropped; models that need every key are then refused."""

    def __init__(self, model: nn.Module) -> None:
        model = unwrapped(model)
        _check(model, self.drops)
        super().__init__(config=text_config(model))
        self._model = weakref.ref(model)
        self._pads: Tensor | None = None
        self._first = 0  # the position of the first token
        self._hook(model)

    @property
    def followed(self) -> list[FollowedLayer]:
        """The layers that drop keys; the others keep what transformers keeps."""
        return [layer for layer in self.layers if isinstance(layer, FollowedLayer)]

    def expect(self, coming: Coming) -> None:
        """Record what the next pass brings."""
        for layer in self.followed:
            layer.expect(coming)

    def crop(self, tokens: int) -> None:
        """Remove the newest tokens: −n removes n of them; a positive number is how many tokens to leave.

        Raises `InputError` if tokens were dropped, which cannot be restored, and if the policy's notes or a layer's
        states depend on the tokens to remove.
        """
        seen = self.get_seq_length()
        left = max(0, seen + tokens) if tokens < 0 else min(tokens, seen)
        reason = next(filter(None, (self._uncroppable(index) for index in range(len(self.layers)))), None)
        if left == seen:
            return
        if reason is not None:
            raise InputError(
                f"the cache has seen {seen} tokens and cannot be cropped to {left}: {reason}; assisted decoding and "
                "prompt lookup need a DynamicCache there"
            )
        for layer in self.layers:
            layer.crop(left - seen)

    def _uncroppable(self, index: int) -> str | None:
        """Why a layer's newest tokens cannot be removed; None if they can."""
        layer: Any = self.layers[index]
        if isinstance(layer, FollowedLayer):
            return None if (reason := layer.uncroppable) is None else f"layer {index} {reason}"
        window = getattr(layer, "sliding_window", None)
        if type(layer) not in GROWING and not isinstance(layer, KEYLESS):
            return f"layer {index} has states that took the tokens in"
        if window is not None and layer.get_seq_length() >= window:
            return f"layer {index} has a window of {window}, and tokens before it are gone"
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """What two caches must have in common for one to load the other's file."""
        return {"kind": type(self).__name__}

    def save(self, path: str | Path) -> None:
        """Write the cache's content to a safetensors file, for `load`. Nothing is pickled."""
        state = {"layers": [_state(layer) for layer in self.layers], "pads": self._pads, "first": self._first}
        saving.write_state(path, self._the_model(), self.settings, state | self._more())

    def load(self, path: str | Path) -> None:
        """Replace the content of this cache by that of a saved one with the same settings and the same model.

        Raises `InputError` for a file that `save` did not write, and for other settings or another model.
        """
        state = saving.read_state(path, self._the_model(), self.settings)
        self.reset()
        for layer, layer_state in zip(self.layers, state["layers"], strict=True):
            if isinstance(layer, FollowedLayer):
                layer.restore(layer_state)
            else:
                vars(layer).update(layer_state)
        self._pads, self._first = state["pads"], state["first"]
        self._restore(state)

    def _more(self) -> dict[str, Any]:
        """What a kind of cache holds in addition to its layers."""
        return {}

    def _restore(self, state: dict[str, Any]) -> None:
        """Restore what `_more` returned."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InputError(
            "a cache follows its model and cannot be pickled: use cache.save(path), and cache.load(path) on a cache "
            "made for the same model; copy.deepcopy(cache) copies it"
        )

    def reset(self) -> None:
        for layer in self.layers:
            if type(layer) in GROWING:  # transformers 5.17 zeroes them in place and appends later keys
                layer.keys = layer.values = None
                layer.is_initialized = False
        super().reset()
        self._pads, self._first = None, 0

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._pads = None if self._pads is None else self._pads.repeat_interleave(repeats, 0)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._pads = None if self._pads is None else self._pads[indices]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._pads = None if self._pads is None else self._pads.index_select(0, beam_idx.to(self._pads.device))

    def __deepcopy__(self, memo: dict[int, Any]) -> FollowingCache:
        # The model is not copied: the copy serves the same model and follows it too.
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            twin.__dict__[name] = value if isinstance(value, weakref.ref) else deepcopy(value, memo)
        if (model := self._model()) is not None:
            twin._hook(model)
        return twin

    def _hook(self, model: nn.Module) -> None:
        """Follow the model for as long as this cache lives."""
        _follow(self, model)

    def read_ahead(self, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Read part of the coming pass separately; returns the arguments of the rest, or None if nothing was read."""
        return None

    def begin(self, forward: Forward, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Check a pass of the model and tell the layers what it brings; returns arguments to add to it.

        Raises `InputError` for a pass that this cache cannot compute correctly.
        """
        tokens = forward.lengths.get("tokens")
        if tokens is None:
            raise InputError("this cache needs the text's token ids or embeddings")
        queries = tokens - forward.seen  # on a fresh pass, learned sink tokens count too
        if queries < 1:
            raise InputError(
                f"this cache has seen {forward.seen} tokens, and the pass brings none that follow them: go on with a "
                "text that begins with those, empty the cache with cache.reset(), or make a new one for another text"
            )
        check_continued(self._the_model(), forward)
        _check_use(inputs, text_config(self._the_model()))
        self._pads = self._padding(forward, tokens)
        coming = Coming(forward.seen, queries, forward.batch, self._pads)
        added = {} if forward.prefix else self._positions(self._the_model(), inputs, coming)
        self.expect(coming)
        return added

    def _positions(self, model: nn.Module, inputs: Mapping[str, Any], coming: Coming) -> dict[str, Any]:
        """Position ids if none were given, otherwise a check of those given: each row counts its real tokens.

        Without them, some families count from 0 in each pass. PaliGemma counts from 1 in `generate`.
        """
        if "position_ids" not in parameters(model).parameters:
            return {}
        tensor = next(v for name in ("input_ids", "inputs_embeds") if isinstance(v := inputs.get(name), Tensor))
        pads = 0 if coming.pads is None else coming.pads[:, None].to(tensor.device)
        positions = inputs.get("position_ids")
        if positions is None and coming.pads is None:  # the common case, in one operation
            start = coming.seen + self._first
            columns = torch.arange(start, start + coming.queries, device=tensor.device)
            columns = columns.clamp_(min=0) if start < 0 else columns
            return {"position_ids": columns.expand(coming.batch, -1)}
        columns = torch.arange(coming.seen, coming.total, device=tensor.device)[None]
        counted = (columns - pads).expand(coming.batch, -1)
        if positions is None:
            return {"position_ids": (counted + self._first).clamp(min=0)}
        plain = positions if positions.ndim == 2 else positions[0]
        if positions.ndim > 2 and not bool((positions == positions[:1]).all()):
            raise UnsupportedModelError("positions of images differ between axes, which this cache does not follow")
        if coming.seen == 0:
            # From the row with the most real tokens: one that is all padding does not show where counting starts.
            fullest = int(counted[:, -1].argmax())
            self._first = int(plain.expand(coming.batch, -1)[fullest, -1] - counted[fullest, -1])
        expected = counted + self._first
        # Positions of padding are arbitrary.
        if plain.shape[1] != expected.shape[1] or not bool(((plain == expected) | (columns < pads)).all()):
            raise InputError(
                f"position_ids start at {plain[:, 0].tolist()}, but the rows continue at {expected[:, 0].tolist()}: a "
                "cache that drops keys needs the number of real tokens before; for a new text: cache.reset()"
            )
        return {}

    def _the_model(self) -> nn.Module:
        model = self._model()
        if model is None:
            raise InputError("the model of this cache was deleted")
        return model

    def _padding(self, forward: Forward, total: int) -> Int[Tensor, " batch"] | None:
        """Left padding of each row, known from the first pass on."""
        real = forward.real.get("tokens")
        if real is None:
            if self._pads is not None:
                raise InputError("earlier passes had padding but this one has no attention_mask: pass it")
            return None
        if real.shape[1] != total:
            raise InputError(f"the attention mask has {real.shape[1]} columns for {total} tokens, cached ones included")
        pads = total - real.sum(-1)
        if not bool((real == _right_aligned(real, pads)).all()):
            raise InputError("padding must be on the left: inside a row it looks like a dropped key")
        if forward.seen and (
            self._pads is None or not _continued(pads.to(self._pads.device), self._pads, forward.seen)
        ):
            raise InputError("the padding of a row changed between passes: pad all rows on the left, once")
        return pads


def _state(layer: Any) -> dict[str, Any]:
    return layer.state() if isinstance(layer, FollowedLayer) else dict(vars(layer))


def _right_aligned(real: Bool[Tensor, "batch position"], pads: Int[Tensor, " batch"]) -> Bool[Tensor, "batch position"]:
    return torch.arange(real.shape[1], device=real.device)[None] >= pads[:, None]


def _continued(pads: Int[Tensor, " batch"], before: Int[Tensor, " batch"], seen: int) -> bool:
    """Whether each row has the same padding as before, except rows that were all padding so far."""
    return bool(((pads == before) | ((before == seen) & (pads > before))).all())


def _check(model: nn.Module, drops: bool) -> None:
    name = family(model)
    if is_encoder_decoder(model):
        raise UnsupportedModelError(f"family '{name}' is an encoder-decoder: only decoders can stream or evict")
    config = text_config(model)
    if config is None or cache_name(model) is None:
        raise UnsupportedModelError(f"family '{name}' takes no cache of keys and values")
    for layer in model.modules():
        if drops and isinstance(operation := getattr(layer, "operation", None), Operation):
            _check_operation(operation.spec, isinstance(model, LabForCausalLM))


def _check_operation(spec: Combination, is_lab: bool) -> None:
    reader = spec.needs_every_key
    if reader is None and not is_lab and not isinstance(spec.mask, Causal | Full):
        reader = "a window or document mask attached to a model"  # it counts the keys in the cache
    if reader is not None:
        raise UnsupportedModelError(f"{reader} needs every key, so no cache may drop any: use a DynamicCache")


def _check_use(inputs: Mapping[str, Any], config: Any) -> None:
    use_cache = inputs.get("use_cache")
    if not (getattr(config, "use_cache", True) if use_cache is None else use_cache):
        raise InputError("use_cache is False, so generate would read the whole text at every step: pass use_cache=True")


def _follow(cache: FollowingCache, model: nn.Module) -> None:
    """Show the cache every pass of `model` that receives it, for as long as the cache lives."""
    # The model holds the hook: with a strong reference, it would keep the cache's keys for as long as it lives.
    reference = weakref.ref(cache)

    def before(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        follower, inputs = reference(), arguments(model, args, kwargs)
        if follower is None or model is not follower._model():  # a copy of a model copies its hooks
            return None
        passed_cache: object = given_cache(inputs)
        if passed_cache is not follower:
            return None
        if (rest := follower.read_ahead(model, inputs)) is not None:
            args, kwargs, inputs = (), rest, rest
        return args, kwargs | follower.begin(Forward.of(model, args, kwargs), inputs)

    weakref.finalize(cache, model.register_forward_pre_hook(before, with_kwargs=True).remove)
