"""A cache of the first and the last tokens, with which a model reads and writes without end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from sinkscope.caches.following import Coming
from sinkscope.caches.layers import HybridSinkWindow, Shown, SinkWindow
from sinkscope.caches.positions import Origin, bias_by_mask, with_kept_columns
from sinkscope.caches.rotation import ALIBI, LayerRotation, measured_rotations
from sinkscope.caches.strict import StrictReading, at_once, parts
from sinkscope.caches.turning import SinkTurner, ahead_of
from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.hooks import CACHE_NAMES, Forward, family, kept_logits, position_limit, unwrapped, with_cache

Distance = Literal["cache", "ceiling", "original"]
LEFT_ALONE = {
    DynamicSlidingWindowLayer: "a window of its own",
    LinearAttentionAndSlidingWindowAttentionLayer: "a window of its own",
    LinearAttentionLayer: "a state of fixed size",
}
LENGTH = 1024  # keys, if a configuration does not say how many tokens a model was trained for
CHUNK = 128  # tokens of a prompt to read at once
PASSED = ("input_ids", "attention_mask", "position_ids", *CACHE_NAMES)  # of a prompt's last token
log = logging.getLogger(__name__)
_warned: set[object] = set()  # once per family
_DROPPED = torch.ones(1, 1, dtype=torch.bool)  # every row has dropped tokens


@dataclass(frozen=True)
class Renumbered:
    """A `StreamingCache` as an arm of a comparison, by its number of keys: `sinks`, and the window as the rest."""

    name: ClassVar[str] = "streaming-cache"

    sinks: int = 4
    distance: Distance = "cache"

    @property
    def least(self) -> int:
        """The fewest keys: the sinks and the query."""
        return self.sinks + 1

    def keeping(self, first: int) -> Renumbered:
        """The same with at least so many first tokens kept."""
        return replace(self, sinks=max(self.sinks, first))

    def cache(self, model: nn.Module, keys: int) -> StreamingCache:
        """The cache with so many keys."""
        return StreamingCache(model, self.sinks, keys - self.sinks, self.distance)

    def describe(self, keys: int | None = None) -> dict[str, Any]:
        """As `Policy.describe`."""
        about = {"policy": "StreamingCache", "sinks": self.sinks, "distance": self.distance}
        return about if keys is None else about | {"newest": keys - self.sinks}


def trained_length(model: nn.Module) -> int | None:
    """Tokens that a model was trained for, from its configuration; None if that does not say, as with ALiBi."""
    return None if family(model) in ALIBI else position_limit(model)


class StreamingCache(StrictReading):
    """Keep the first `sinks` tokens and the last `window`, the query included (StreamingLLM, Xiao et al. 2024).

        model.generate(ids, past_key_values=StreamingCache(model, sinks=4, window=1020))

    A query sees at most n = sinks + window keys. By default that is what the model was trained for (1,024 if its
    configuration does not say); more is accepted with a warning. A query at place t has its true distance from each
    token of the window, and from sink j the one that `distance` selects:

    - "cache": n − 1 − j, as if nothing had been in between (StreamingLLM).
    - "ceiling": min(t − j, window), one step beyond the window (LM-Infinite, Han et al. 2024).
    - "original": t − j, which grows without bound; for comparison.

    Time and memory per step do not depend on the length of the text. Only sinks are rotated, from their originals, by
    the model's measured rotation. Positions are counted from a new origin from time to time, so that the model's own
    angles stay accurate. Rows may be padded on the left; each has its own first tokens.

    `generate` reads a prompt as if token by token, and so do `prefill` and `read`. A pass of several tokens that asks
    for the logits of all of them shows later queries more than the window, with a warning. Layers with a window or with
    states of their own are left to transformers: `left_alone` lists them with the reason.

    StreamingLLM's code drops a token before or after adding one, depending on the script; here the query counts, so its
    4 + 1020 in a perplexity run is sinks=4, window=1021.

    Raises `InputError` for a window below 1, sinks below 0, or a distance other than "cache" if ALiBi counts the kept
    keys; `UnsupportedModelError`, by name, for models with absolute positions, learned biases by distance, frequencies
    that change with the length, caches of their own, keys selected by an index, and models without a layer that sees
    everything.
    """

    def __init__(
        self, model: nn.Module, sinks: int = 4, window: int | None = None, distance: Distance = "cache"
    ) -> None:
        if not isinstance(sinks, int) or sinks < 0:
            raise InputError(f"sinks = {sinks!r}: a whole number, at least 0")
        if window is not None and (not isinstance(window, int) or window < 1):
            raise InputError(f"window = {window!r}: at least 1 token, the query itself")
        if distance not in get_args(Distance):
            raise unknown("distance", str(distance), get_args(Distance))
        model = unwrapped(model)
        trained = trained_length(model)
        if window is None:
            window = (trained or LENGTH) - sinks
            if window < 1:
                raise InputError(f"sinks = {sinks}: the model was trained for {trained} tokens, which leaves no window")
        if distance != "cache" and family(model) in ALIBI:
            raise InputError(
                f"distance = {distance!r}: the ALiBi of family '{family(model)}' counts the keys that are kept, so its "
                "sinks stand just before the window: distance='cache' is the only one"
            )
        self._kept_alone = bias_by_mask(model) is not None  # masks cover the kept tokens alone
        super().__init__(model)
        self.sinks, self.window, self.distance = sinks, window, distance
        rotations = measured_rotations(model)
        self.left_alone: dict[int, str] = {}
        for index, layer in enumerate(self.layers):
            self.layers[index] = self._streaming(model, index, layer, rotations.get(index))
        if not self.followed:
            raise UnsupportedModelError(
                f"family '{family(model)}' as configured has no layer that sees everything, so it streams already: its "
                "own windows keep the last tokens, and sinks cannot be shown to them"
            )
        self._origin = Origin.of(model, rotations, sinks)
        self._turner = SinkTurner(ahead_of(sinks, window))
        self._pass: Shown | None = None  # the current one
        self._masks: dict[torch.device, Tensor] = {}  # of a strict pass, by device
        self._say(model, trained)

    @property
    def length(self) -> int:
        """Keys that a query sees at most."""
        return self.sinks + self.window

    @property
    def followed(self) -> list[SinkWindow]:  # type: ignore[override]
        return [layer for layer in self.layers if isinstance(layer, SinkWindow)]

    def prefill(
        self,
        model: nn.Module,
        ids: Int[Tensor, "batch position"],
        chunk: int = CHUNK,
        attention_mask: Tensor | None = None,
    ) -> None:
        """Read all but the last token of `ids`, so that `generate(ids, past_key_values=cache)` continues from there.

        Every token sees what it would see token by token, whatever `chunk` is, although about `chunk` tokens are read
        at once. Models for which that is impossible are read token by token: those with states that restart in each
        pass of several tokens (found by trying), and those whose attention does not use transformers' interface. Padded
        rows are refused if reading token by token would feed the padding to such states.
        """
        if ids.ndim != 2 or ids.shape[1] < 2:
            raise InputError(f"ids {tuple(ids.shape)}: a prompt of at least two tokens, (batch, position)")
        mask = None if attention_mask is None else attention_mask[:, : self.get_seq_length() + ids.shape[1] - 1]
        for _ in self._read(model, ids[:, :-1], chunk, mask, kept_logits(unwrapped(model))):
            continue

    def read(
        self,
        model: nn.Module,
        ids: Int[Tensor, "batch position"],
        chunk: int = CHUNK,
        attention_mask: Tensor | None = None,
    ) -> Iterator[Any]:
        """The model's outputs for `ids`, up to `chunk` tokens at a time, each as if the tokens came one by one.

        They continue what was read before; `attention_mask` then covers that too.
        """
        return self._read(model, ids, chunk, attention_mask, {})

    def begin(self, forward: Forward, inputs: Mapping[str, Any]) -> dict[str, Any]:
        added = super().begin(forward, inputs)
        # After `super().begin`: it checks positions counted from 0, and its `expect` may move the origin.
        return added | self._origin.counted(added.get("position_ids", inputs.get("position_ids")))

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        length, offset = super().get_mask_sizes(query_length, layer_idx)
        # BLOOM's mask is cut to the kept columns (`with_kept_columns`): keys and queries are numbered within it.
        return length, 0 if self._kept_alone else offset

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.followed[0].kept if self._kept_alone else super().get_query_offset(layer_idx)

    def expect(self, coming: Coming) -> None:
        super().expect(coming)
        seen = [coming.seen] if coming.pads is None else [coming.seen - pad for pad in coming.pads.tolist()]
        if by := self._origin.moved(seen, coming.queries):
            # Kept keys are still rotated to positions counted from the old origin.
            self._origin.turn(self, -by)
        self._masks = {}
        layers, standing = self.followed, {}
        # All rows are at one place, so their shift is the same and can be computed for later places too.
        if coming.queries == 1 and coming.pads is None and coming.seen >= self.length:  # the common case
            shown = Shown(coming, self.length - 1, self.sinks, dropped=_DROPPED, everyone=True)
            standing = self._turner.ahead(layers, coming.seen, self._origin.base, self._by)
        else:
            shown = self._shown(coming, seen)
            if shown.dropped is not None and not shown.copies:
                standing = self._turner.turned(layers, shown)
        self._pass = shown
        for layer in layers:
            layer.show(shown, standing.get(layer))

    def reset(self) -> None:
        super().reset()
        self._origin.reset()

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"sinks": self.sinks, "window": self.window, "distance": self.distance}

    def _more(self) -> dict[str, Any]:
        return {"base": self._origin.base}

    def _restore(self, state: dict[str, Any]) -> None:
        self._origin.base = state["base"]

    def read_ahead(self, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """For a prompt of which only the last logits are asked for, as by `generate`: read all tokens but the last."""
        ids, mask, seen = inputs.get("input_ids"), inputs.get("attention_mask"), self.get_seq_length()
        # Strict passes come from `_read` itself. Up to `length` tokens nothing is dropped, so a plain pass is exact.
        if self.strict or not isinstance(ids, Tensor) or ids.shape[1] < 2 or seen + ids.shape[1] <= self.length:
            return None
        plain = mask is None or (isinstance(mask, Tensor) and mask.shape == (len(ids), seen + ids.shape[1]))
        # Other tensors (labels, images) cannot be split with the ids, and hidden states are wanted for every token.
        others = [name for name, value in inputs.items() if name not in PASSED and isinstance(value, Tensor)]
        hidden = inputs.get("output_hidden_states") or inputs.get("output_attentions")
        last = inputs.get("logits_to_keep")
        alone = last == 1 if isinstance(last, int) else False
        # `_counted`, because `_read` passes no position_ids.
        if not (alone and plain and not others and not hidden and self._counted(inputs) and at_once(model, self)):
            self._warn(model)
            return None
        before = None if mask is None else mask[:, :-1]
        for _ in self._read(model, ids[:, :-1], CHUNK, before, kept_logits(model)):
            continue
        positions = inputs.get("position_ids")
        rest = {"input_ids": ids[:, -1:]} | ({} if positions is None else {"position_ids": positions[..., -1:]})
        return dict(inputs) | rest

    def _counted(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the pass's positions are the default ones."""
        positions, mask = inputs.get("position_ids"), inputs.get("attention_mask")
        if positions is None:
            return True
        tokens = self.get_seq_length() + inputs["input_ids"].shape[1] if mask is None else mask.sum(-1)
        return bool((positions[..., -1] == tokens - 1).all())

    def _warn(self, model: nn.Module) -> None:
        if ("dense", family(model)) not in _warned:
            _warned.add(("dense", family(model)))
            log.warning(
                "a pass of several tokens shows the later ones more than the %d keys of a stream: read a text with "
                "cache.read(model, ids), and a prompt before generate with cache.prefill(model, ids)",
                self.length,
            )

    def _hook(self, model: nn.Module) -> None:
        super()._hook(model)
        with_kept_columns(self, model)

    def _streaming(self, model: nn.Module, index: int, layer: Any, rotation: LayerRotation | None) -> Any:
        """The layer that replaces transformers' own, or that one, with the reason.

        A layer without a rotation cached no keys in the measuring pass.
        """
        kind = type(layer)
        if rotation is not None and kind is DynamicLayer:
            return SinkWindow(self.sinks, self.window, rotation)
        if rotation is not None and kind is LinearAttentionAndFullAttentionLayer:
            return HybridSinkWindow(self.sinks, self.window, rotation, number_of_states=layer.number_of_states)
        if rotation is not None and kind not in LEFT_ALONE:
            raise UnsupportedModelError(
                f"family '{family(model)}', layer {index}: a {kind.__name__} keeps more than keys and values of tokens "
                "(keys chosen by an index, compressed keys), which cannot be streamed"
            )
        window = getattr(layer, "sliding_window", None)
        self.left_alone[index] = LEFT_ALONE.get(kind, "no keys of its own") + (f", {window} tokens" if window else "")
        return layer

    def _shown(self, coming: Coming, seen: list[int]) -> Shown:
        """What the coming pass sees. `seen`: real tokens of each row before it."""
        kept = min(coming.seen, self.length - 1)
        strict = self.strict and coming.queries > 1
        ahead = torch.arange(coming.queries if strict else 1)
        places = torch.tensor(seen)[:, None] + ahead  # of the queries, or of the first one only
        if max(seen) + len(ahead) - 1 < self.length:
            return Shown(coming, kept, self.sinks)
        # A query at place t sees t + 1 tokens with its own, so from place `length` on its row has dropped some.
        dropped = places >= self.length
        device = None if coming.pads is None else coming.pads.device
        return Shown(
            coming,
            kept,
            self.sinks,
            dropped=dropped.to(device),
            # Sinks are cached before the origin first moves (`Origin.moved`); queries count from `base`.
            by=(self._by(places) - self._origin.base).to(device),
            copies=strict,
            everyone=min(seen) >= self.length,
        )

    def _read(
        self, model: nn.Module, ids: Tensor, chunk: int, mask: Tensor | None, more: dict[str, Any]
    ) -> Iterator[Any]:
        if unwrapped(model) is not self._the_model():
            raise InputError("this cache was made for another model: make one with StreamingCache(model)")
        plain = chunk == 1 or not at_once(unwrapped(model), self)
        for inputs in parts(self.get_seq_length(), ids, 1 if plain else chunk, mask):
            # Closed before the `yield`: a suspended generator would leave these contexts open in its caller's code.
            with torch.no_grad(), nullcontext() if plain else self.strictly(unwrapped(model)):
                output = model(**inputs, **more, use_cache=True, **with_cache(model, self))
            yield output

    def mask_of(self, layer_idx: int, device: torch.device) -> Tensor | None:
        """A single token sees all that it is shown."""
        if self._pass is None or self._pass.coming.queries == 1 or not isinstance(self.layers[layer_idx], SinkWindow):
            return None
        if device not in self._masks:
            self._masks[device] = self._pass.mask(self.window, device)
        return self._masks[device]

    def _by(self, places: Int[Tensor, "batch queries"]) -> Tensor:
        """Positions by which the sinks are rotated forward for queries at these places."""
        sinks = torch.arange(self.sinks)
        # With t the query's place, t − (j + by) is to be length − 1 − j, min(t − j, window) or t − j, in this order.
        if self.distance == "cache":
            return (places - self.length + 1)[..., None].expand(-1, -1, self.sinks)
        if self.distance == "ceiling":
            return (places[..., None] - self.window - sinks).clamp(min=0)
        return places[..., None].expand(-1, -1, self.sinks) * 0

    def _say(self, model: nn.Module, trained: int | None) -> None:
        """Warn if there are more keys than the model knows; report once per family which layers do not stream."""
        if trained is not None and self.length > trained:
            log.warning(
                "sinks + window = %d keys, but the model was trained for %d tokens: longer distances are new to it; "
                "leave window out for as many as it knows",
                self.length,
                trained,
            )
        if self.left_alone and family(model) not in _warned:
            _warned.add(family(model))
            reasons = ", ".join(dict.fromkeys(self.left_alone.values()))
            log.warning(
                "%d of the %d layers of family '%s' are left unchanged (%s)",
                len(self.left_alone),
                len(self.left_alone) + len(self.followed),
                family(model),
                reasons,
            )
