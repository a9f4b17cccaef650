"""A cache of the first tokens and the last ones, so that a model reads and writes for ever."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, get_args

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

from sinkscope.caches.following import Coming, FollowingCache
from sinkscope.caches.layers import HybridSinkWindow, Shown, SinkWindow
from sinkscope.caches.positions import Origin, bias_by_mask, with_kept_columns
from sinkscope.caches.rotation import ALIBI, measured_rotations
from sinkscope.caches.strict import KEYLESS, at_once, kept_logits, masked, parts
from sinkscope.caches.together import Together
from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.hooks import Forward, family, unwrapped

Distance = Literal["cache", "ceiling", "original"]
LEFT_ALONE = {
    DynamicSlidingWindowLayer: "a window of its own",
    LinearAttentionAndSlidingWindowAttentionLayer: "a window of its own",
    LinearAttentionLayer: "a state of fixed size",
    **dict.fromkeys(KEYLESS, "no keys of its own"),
}
log = logging.getLogger(__name__)
_said: set[str] = set()
_DROPPED = torch.ones(1, 1, dtype=torch.bool)  # every row has dropped tokens


class StreamingCache(FollowingCache):
    """Keep the first `sinks` tokens and the last `window`, the query among them (StreamingLLM, Xiao et al. 2024).

        model.generate(ids, past_key_values=StreamingCache(model, sinks=4, window=1020))

    A query sees at most sinks + window keys. It stands at the distance from token j of the window that it has in the
    text, and from sink j at the one that `distance` says, for a query at place t and n = sinks + window:

    - "cache": n − 1 − j, as if nothing had been between (StreamingLLM).
    - "ceiling": min(t − j, window), one step beyond the window (LM-Infinite, Han et al. 2024).
    - "original": t − j, which grows for ever; for comparison.

    Time and memory of a step do not depend on what was seen. Only sinks are turned, from their originals, by the
    rotation that was measured. Places are counted from a new origin from time to time, so that the model's own angles
    stay accurate. Rows may be padded on the left; each has its own first tokens.

    A pass of several tokens shows later queries more than the window, as with any cache in `generate`; `prefill` reads
    a prompt as if token by token. Layers with a window of their own, or with states, are left to transformers:
    `left_alone` says which and why.

    The code of StreamingLLM drops before or after a token is added, in different scripts; here the query counts, so its
    4 + 1020 in a perplexity run is sinks=4, window=1021.

    Raises `InputError` for a window below 1, sinks below 0, or another distance than "cache" where ALiBi counts the
    keys that are kept; `UnsupportedModelError`, by name, for models with absolute positions, learned biases by
    distance, frequencies that change with the length, caches of their own, keys chosen by an index, and for those of
    which no layer sees everything.
    """

    def __init__(self, model: nn.Module, sinks: int = 4, window: int = 1020, distance: Distance = "cache") -> None:
        if not isinstance(sinks, int) or sinks < 0:
            raise InputError(f"sinks = {sinks!r}: a whole number, at least 0")
        if not isinstance(window, int) or window < 1:
            raise InputError(f"window = {window!r}: at least 1 token, the query itself")
        if distance not in get_args(Distance):
            raise unknown("distance", str(distance), get_args(Distance))
        model = unwrapped(model)
        if distance != "cache" and family(model) in ALIBI:
            raise InputError(
                f"distance = {distance!r}: the ALiBi of family '{family(model)}' counts the keys that are kept, so its "
                "sinks stand just before the window: distance='cache' is the only one"
            )
        self._kept_alone = bias_by_mask(model) is not None  # of a text, for masks
        super().__init__(model)
        self.sinks, self.window, self.distance = sinks, window, distance
        rotations = measured_rotations(model)
        self.left_alone: dict[int, str] = {}
        for index, layer in enumerate(self.layers):
            self.layers[index] = layer if index not in rotations else self._streaming(model, index, layer, rotations)
        if not self.followed:
            raise UnsupportedModelError(
                f"family '{family(model)}' as configured has no layer that sees everything, so it streams already: its "
                "own windows keep the last tokens, and sinks cannot be shown to them"
            )
        self._origin = Origin.of(model, rotations, sinks)
        self._together = Together()
        self._strict = False
        self._pass: Shown | None = None  # the one under way
        self._masks: dict[torch.device, Tensor] = {}  # of a strict pass
        self._awaited: Tensor | None = None
        self._attended = True
        self._say(model)

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
        chunk: int = 128,
        attention_mask: Tensor | None = None,
    ) -> None:
        """Read all but the last token of `ids`, which `generate(ids, past_key_values=cache)` then goes on with.

        Every token sees what it would see if they came one by one, whatever `chunk` is, while about `chunk` of them are
        read at once. Token by token where that cannot be had: beside states that begin anew in each pass of several
        tokens (tried, not listed) and where attention does not go through transformers' interface. Rows with padding
        are refused token by token beside states, which would take it in.
        """
        if ids.ndim != 2 or ids.shape[1] < 2:
            raise InputError(f"ids {tuple(ids.shape)}: a prompt of at least two tokens, (batch, position)")
        given = None if attention_mask is None else attention_mask[:, : self.get_seq_length() + ids.shape[1] - 1]
        for _ in self._read(model, ids[:, :-1], chunk, given, kept_logits(unwrapped(model))):
            continue

    def read(
        self,
        model: nn.Module,
        ids: Int[Tensor, "batch position"],
        chunk: int = 128,
        attention_mask: Tensor | None = None,
    ) -> Iterator[Any]:
        """The model's outputs for `ids`, up to `chunk` tokens at a time, each as if the tokens came one by one.

        They follow what was read before; `attention_mask` then covers that too.
        """
        return self._read(model, ids, chunk, attention_mask, {})

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if self._strict:
            self._check_attended()
            streams = isinstance(self.layers[layer_idx], SinkWindow)
            self._awaited = self._strict_mask(key_states.device) if streams else None
            self._attended = self._awaited is None
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def awaited(self) -> Tensor | None:
        """The mask for the layer that was updated last; None where transformers' own is right."""
        self._attended = True
        return self._awaited

    def begin(self, forward: Forward, given: Mapping[str, Any]) -> dict[str, Any]:
        added = super().begin(forward, given)
        return added | self._origin.counted(added.get("position_ids", given.get("position_ids")))

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        length, offset = super().get_mask_sizes(query_length, layer_idx)
        return length, 0 if self._kept_alone else offset

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.followed[0].kept if self._kept_alone else super().get_query_offset(layer_idx)

    def expect(self, coming: Coming) -> None:
        super().expect(coming)
        seen = [coming.seen] if coming.pads is None else [coming.seen - pad for pad in coming.pads.tolist()]
        if by := self._origin.moved(seen, coming.queries):
            self._origin.turn(self, -by)
        self._masks, self._awaited, self._attended = {}, None, True
        layers, standing = self.followed, {}
        if coming.queries == 1 and coming.pads is None and coming.seen >= self.length:  # most passes: next to no work
            shown = Shown(coming, self.length - 1, self.sinks, dropped=_DROPPED, everyone=True)
            standing = self._together.ahead(layers, coming.seen, self._origin.base, self._by)
        else:
            shown = self._shown(coming, seen)
            if shown.dropped is not None and not shown.copies:
                standing = self._together.turned(layers, shown)
        self._pass = shown
        for layer in layers:
            layer.show(shown, standing.get(layer))

    def reset(self) -> None:
        super().reset()
        self._origin.reset()

    def _hook(self, model: nn.Module) -> None:
        super()._hook(model)
        with_kept_columns(self, model)

    def _streaming(self, model: nn.Module, index: int, layer: Any, rotations: Any) -> Any:
        """The layer to put in place of transformers' own, or that one, and why."""
        kind = type(layer)
        if kind is DynamicLayer:
            return SinkWindow(self.sinks, self.window, rotations[index])
        if kind is LinearAttentionAndFullAttentionLayer:
            states = layer.number_of_states
            return HybridSinkWindow(self.sinks, self.window, rotations[index], number_of_states=states)
        if kind not in LEFT_ALONE:
            raise UnsupportedModelError(
                f"family '{family(model)}', layer {index}: a {kind.__name__} keeps more than keys and values of tokens "
                "(keys chosen by an index, compressed keys), which cannot be streamed"
            )
        own = getattr(layer, "sliding_window", None)
        self.left_alone[index] = LEFT_ALONE[kind] + (f", {own} tokens" if own else "")
        return layer

    def _shown(self, coming: Coming, seen: list[int]) -> Shown:
        """What the coming pass sees. `seen`: real tokens of each row before it."""
        kept = min(coming.seen, self.length - 1)
        strict = self._strict and coming.queries > 1
        ahead = torch.arange(coming.queries if strict else 1)
        places = torch.tensor(seen)[:, None] + ahead  # of the queries, or of the first one
        if max(seen) + len(ahead) - 1 < self.length:
            return Shown(coming, kept, self.sinks)
        dropped = places >= self.length
        device = None if coming.pads is None else coming.pads.device
        return Shown(
            coming,
            kept,
            self.sinks,
            dropped=dropped.to(device),
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
        for given in parts(unwrapped(model), self.get_seq_length(), ids, 1 if plain else chunk, mask):
            with torch.no_grad(), nullcontext() if plain else self._strictly(unwrapped(model)):
                output = model(**given, **more, past_key_values=self, use_cache=True)
            yield output

    @contextmanager
    def _strictly(self, model: nn.Module) -> Iterator[None]:
        """Inside, each query of a pass sees what it would see alone."""
        self._strict = True
        try:
            with masked(model, self):
                yield
            self._check_attended()
        finally:
            self._strict = False

    def _check_attended(self) -> None:
        if not self._attended:
            raise UnsupportedModelError(
                "attention of a layer did not go through transformers' interface: read token by token, with chunk=1"
            )

    def _strict_mask(self, device: torch.device) -> Tensor | None:
        """The mask of the pass under way; None for a single token, which sees all that it is shown."""
        if self._pass is None or self._pass.coming.queries == 1:
            return None
        if device not in self._masks:
            self._masks[device] = self._pass.mask(self.window, device)
        return self._masks[device]

    def _by(self, places: Int[Tensor, "batch queries"]) -> Tensor:
        """Positions by which the sinks are turned forward for queries at these places."""
        sinks = torch.arange(self.sinks)
        if self.distance == "cache":
            return (places - self.length + 1)[..., None].expand(-1, -1, self.sinks)
        if self.distance == "ceiling":
            return (places[..., None] - self.window - sinks).clamp(min=0)
        return places[..., None].expand(-1, -1, self.sinks) * 0

    def _say(self, model: nn.Module) -> None:
        """Say once for a family which layers do not stream."""
        if self.left_alone and family(model) not in _said:
            _said.add(family(model))
            reasons = ", ".join(dict.fromkeys(self.left_alone.values()))
            log.warning(
                "%d of the %d layers of family '%s' are left as they are (%s)",
                len(self.left_alone),
                len(self.left_alone) + len(self.followed),
                family(model),
                reasons,
            )
