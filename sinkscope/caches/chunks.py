"""Chunks of a text encoded apart and joined into one cache, as retrieved passages are reused.

Each chunk is read alone, from position 0. Its keys are then rotated to where the chunk begins and all chunks are put
one after the other. No token has seen another chunk, and each chunk brings a sink of its own. `recomputed` is the
repair of the literature: some tokens are read again and attend to everything before them.

What was read: of EPIC (Hu et al. 2024, arXiv 2410.15332) the abstract, and the code of DerekHJH/epic@8aa79213
(vllm/model_executor/models/llama.py, vllm/attention/backends/xformers.py), where the tokens listed in `kvlink` are
recomputed in all layers. Its text, and how it chooses chunk lengths and k, could not be checked. Of CacheBlend (Yao et
al. 2024, arXiv 2405.16444) the code in the same repository: layers 0 and 1 compute all tokens, further layers only the
16 % whose values differ most at layer 1 (LMCache compares keys, 15 %). Here tokens are chosen likewise (`deviation`),
and only they are replaced, in layers 0 and 1 too. No result of either paper is reproduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sinkscope.caches.rotation import ALIBI, measured_rotations
from sinkscope.caches.strict import at_once, masked
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    cache_name,
    checked_inputs,
    device_of,
    evaluating,
    family,
    is_encoder_decoder,
    kept_logits,
    parameters,
    text_config,
    unwrapped,
    with_cache,
)


@dataclass(frozen=True, eq=False)
class Chunks:
    """The keys and values of texts that were read in chunks, at the positions that they have in the whole text.

    `layers`: keys and values of each layer, (batch, kv_heads, stored, dim); `lengths`: tokens of each chunk;
    `dropped`: how many tokens of each text are no longer stored.
    """

    ids: Int[Tensor, "batch token"]
    lengths: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]
    dropped: int = 0

    @property
    def starts(self) -> tuple[int, ...]:
        """The position at which each chunk begins."""
        return tuple(accumulate(self.lengths, initial=0))[:-1]

    def cache(self, model: nn.Module) -> DynamicCache:
        """A cache with these tokens, which `model.generate(ids, past_key_values=cache)` continues; `ids` begins with
        them. Tensors are shared until something is appended.
        """
        cache = DynamicCache(config=text_config(unwrapped(model)))
        for index, (keys, values) in enumerate(self.layers):
            cache.layers[index] = JoinedLayer(keys, values, self.dropped)
        return cache

    def recomputed(self, model: nn.Module, tokens: Bool[Tensor, "batch token"]) -> Chunks:
        """The same after these tokens were read again, each attending to all tokens up to its own position.

        In every layer, the new keys and values replace the old ones before attention, as in EPIC and CacheBlend; all
        other tokens keep what they were encoded with. Each text needs the same number of tokens.

        Raises `InputError` for another shape, unequal numbers, and dropped tokens; `UnsupportedModelError` for a model
        whose attention takes no mask of any form (lab models: `model.to_llama()`).
        """
        model = unwrapped(model)
        count = self._count(tokens)
        if count == 0:
            return self
        places = _places(tokens, count, self.layers[0][0].device)
        cache = _Recomputing(model, self, places)
        if not at_once(model, cache):
            raise UnsupportedModelError(
                f"family '{family(model)}': tokens are recomputed under a mask of their own, which needs attention "
                "through transformers' sdpa or eager functions; a lab model: model.to_llama()"
            )
        ids = self.ids.to(places.device).gather(1, places)
        with evaluating(model), torch.no_grad(), masked(model, cache):
            model(**_inputs(model, ids, places), **with_cache(model, cache))
        return replace(self, layers=tuple((keys, values) for keys, values in cache.joined))

    def without(self, tokens: Bool[Tensor, "batch token"]) -> Chunks:
        """The same without these tokens: nothing that is read later attends to them. Positions stay as they are.

        Each text needs the same number of tokens. Raises `InputError` as `recomputed` does, and where none is left.
        """
        count = self._count(tokens)
        kept = _places(~tokens.bool(), tokens.shape[1] - count, self.layers[0][0].device)
        if kept.shape[1] == 0:
            raise InputError("every token of the chunks would be dropped: keep at least one")
        layers = tuple((_taken(keys, kept), _taken(values, kept)) for keys, values in self.layers)
        return replace(self, layers=layers, dropped=count)

    def deviation(self, other: Chunks, layer: int = 1) -> Float[Tensor, "batch token"]:
        """Σ (v − v')² over the heads and channels of a layer's values: by what CacheBlend chooses tokens, at layer 1.

        `other`: the same texts, usually read at once. Raises `InputError` for other texts or a layer that is not there.
        """
        if not 0 <= layer < len(self.layers):
            raise InputError(f"layer = {layer}: the model has layers 0 to {len(self.layers) - 1}")
        mine, others = self.layers[layer][1], other.layers[layer][1]
        if (
            self.ids.shape != other.ids.shape
            or self.dropped
            or other.dropped
            or not bool((self.ids == other.ids).all())
        ):
            raise InputError("deviations are between two encodings of the same whole texts")
        return (mine.double() - others.double()).square().sum((1, 3)).float()

    def _count(self, tokens: Tensor) -> int:
        """How many tokens a mask names in each text."""
        if tuple(tokens.shape) != tuple(self.ids.shape):
            raise InputError(f"tokens {tuple(tokens.shape)}: expected a mask of shape {tuple(self.ids.shape)}")
        if self.dropped:
            raise InputError("tokens were dropped already: recompute first, then drop, all at once")
        counts = tokens.sum(-1).unique().tolist()
        if len(counts) > 1:
            raise InputError(
                f"{min(counts)} to {max(counts)} tokens of a text: name the same number in every text, or join them "
                "one by one"
            )
        return int(counts[0])


def join_chunks(model: nn.Module, ids: Int[Tensor, "batch token"], lengths: Sequence[int], *, ahead: int = 0) -> Chunks:
    """Read each chunk of the texts alone, rotate its keys to its place, and join the chunks.

        chunks = ss.caches.join_chunks(model, ids[:, :384], (96, 96, 96, 96))
        model.generate(ids, past_key_values=chunks.cache(model))

    The rotation is the measured one (`measured_rotations`), so partial, interleaved and scaled rotations are followed.
    One chunk gives the cache of the plain text.

    Args:
        model: A decoder all of whose layers attend to everything.
        ids: Token ids without padding.
        lengths: Tokens of each chunk, in order; their sum is the number of tokens.
        ahead: Each later chunk is read after the first `ahead` tokens of the first chunk, which are then left out: it
            uses their sink instead of making its own, and nothing is recomputed when chunks are joined.

    Raises `InputError` for lengths that do not fit, and for ids as `measure` does. Raises `UnsupportedModelError`, by
    name, for models whose keys cannot be moved (learned or sinusoidal positions, ALiBi, biases by distance, frequencies
    that change with the length) and for layers with a window or with states: reading a chunk alone does not give what
    they would hold.
    """
    model = unwrapped(model)
    lengths = tuple(int(length) for length in lengths)
    if ids.ndim != 2 or not lengths or min(lengths) < 1 or sum(lengths) != ids.shape[1]:
        raise InputError(
            f"ids {tuple(ids.shape)} in chunks of {list(lengths)}: token ids (batch, token), and lengths of at least 1 "
            "whose sum is the number of tokens"
        )
    if not 0 <= ahead <= lengths[0]:
        raise InputError(f"ahead = {ahead}: 0 to {lengths[0]} tokens, the first chunk's")
    _check(model)
    ids = checked_inputs(model, ids)[0]["input_ids"]
    rotations = measured_rotations(model)
    joined: list[list[tuple[Tensor, Tensor]]] = []
    start = 0
    for chunk in ids.split(lengths, 1):
        cut = ahead if start else 0
        cache = DynamicCache(config=text_config(model))
        read = torch.cat([ids[:, :cut], chunk], 1).to(device_of(model))
        with evaluating(model), torch.no_grad():
            places = torch.arange(read.shape[1], device=read.device)[None]
            model(**_inputs(model, read, places), **with_cache(model, cache))
        # Token i of the chunk was read at position cut + i and belongs to position start + i.
        by, layers = torch.tensor(start - cut), []
        for index, layer in enumerate(cache.layers):
            turned = []
            for part, rotation in ((layer.keys, rotations[index].keys), (layer.values, rotations[index].values)):
                part = part[:, :, cut:]
                turned.append(part if rotation is None or start == cut else rotation.turn(part, by.to(part.device)))
            layers.append((turned[0], turned[1]))
        joined.append(layers)
        start += chunk.shape[1]
    parts = zip(*joined, strict=True)
    return Chunks(ids, lengths, tuple(_concatenated(chunks) for chunks in parts))


class JoinedLayer(DynamicLayer):
    """A layer that holds joined chunks. Of `dropped` tokens it has no keys, but positions count them."""

    def __init__(self, keys: Tensor, values: Tensor, dropped: int = 0) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values, self.dropped = keys, values, dropped

    def get_seq_length(self) -> int:
        """Tokens seen, by which `generate` and masks count."""
        return super().get_seq_length() + self.dropped

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # As if the first tokens had been dropped: every stored key is older than the queries, so all are visible.
        return super().get_seq_length() + query_length, self.dropped

    def crop(self, *args: Any, **kwargs: Any) -> None:
        if self.dropped:
            raise InputError("the cache has dropped tokens and cannot be cropped: use one without dropped tokens")
        super().crop(*args, **kwargs)


class _Recomputing(DynamicCache):
    """Replaces the keys and values of some tokens, and shows a layer's attention all of them under `awaited`."""

    def __init__(self, model: nn.Module, chunks: Chunks, places: Int[Tensor, "batch recomputed"]) -> None:
        super().__init__(config=text_config(model))
        self.joined = list(chunks.layers)
        self._places, self._total = places, chunks.ids.shape[1]
        # (batch, 1, recomputed, stored)
        self._mask = (torch.arange(self._total, device=places.device) <= places[..., None])[:, None]

    def awaited(self) -> Bool[Tensor, "batch 1 query stored"]:
        return self._mask

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        # Out of place, because the chunks that are recomputed keep these tensors.
        layer = tuple(
            old.scatter(2, _index(self._places, new), new)
            for old, new in zip(self.joined[layer_idx], (key_states, value_states), strict=True)
        )
        self.joined[layer_idx] = (layer[0], layer[1])
        return layer

    def get_seq_length(self, layer_idx: int = 0) -> int:
        # As if the recomputed tokens were the last ones, so that queries and columns end at the same place.
        return self._total - self._places.shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._total, 0


def _check(model: nn.Module) -> None:
    """Raise `UnsupportedModelError` unless every layer keeps the keys of all tokens, at positions that can move."""
    name = family(model)
    if is_encoder_decoder(model) or cache_name(model) is None:
        raise UnsupportedModelError(f"family '{name}' is no decoder with a cache of keys and values")
    if name in ALIBI:
        raise UnsupportedModelError(
            f"family '{name}' has ALiBi, a bias by a key's index in its cache, not by a rotation of keys: chunks are "
            "joined for families with rotary positions or none"
        )
    for index, layer in enumerate(DynamicCache(config=text_config(model)).layers):
        if type(layer) is not DynamicLayer:
            raise UnsupportedModelError(
                f"family '{name}', layer {index}: a {type(layer).__name__} (a window or a state) holds the end of what "
                "it read, which cannot be joined: chunks need layers that keep every key"
            )


def _inputs(model: nn.Module, ids: Tensor, positions: Tensor) -> dict[str, Any]:
    inputs: dict[str, Any] = {"input_ids": ids, "use_cache": True, **kept_logits(model)}
    if "position_ids" in parameters(model).parameters:
        inputs["position_ids"] = positions.expand(len(ids), -1)
    return inputs


def _concatenated(chunks: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    keys, values = (torch.cat(parts, 2) for parts in zip(*chunks, strict=True))
    return keys, values


def _places(tokens: Tensor, count: int, device: torch.device) -> Int[Tensor, "batch count"]:
    """The positions that a mask names, in order."""
    return tokens.to(device).nonzero()[:, 1].view(len(tokens), count)


def _index(places: Tensor, like: Tensor) -> Tensor:
    return places[:, None, :, None].expand(-1, like.shape[1], -1, like.shape[3])


def _taken(states: Tensor, places: Tensor) -> Tensor:
    return states.gather(2, _index(places, states))
