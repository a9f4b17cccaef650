"""Eviction inside anybody's unmodified `generate()`: an editor of attention calls that scores keys and drops some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer

from sinkscope.caches.budgets import Budget, budget_of
from sinkscope.caches.call import EvictionCall, wide
from sinkscope.caches.following import FollowingCache
from sinkscope.caches.layers.slots import HybridSlotsLayer, KeptSets, SlotsLayer
from sinkscope.caches.masks import by_place, is_bias
from sinkscope.caches.notes import KeyNote, RowNote
from sinkscope.caches.policies import Policy, policy_of
from sinkscope.caches.rotation import Rotation, measured_rotations
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, Forward, attention_layers, editing, family, own_attention, unwrapped

When = Literal["prefill", "always"]
AGREES = 0.02  # of the largest output: by how much a layer's own output may differ from what its weights say
STORED = ("keys", "values", "places")


class EvictingCache(FollowingCache):
    """A cache that keeps a budget of keys per head, chosen by a policy. Made by `evicting`, and used inside it.

    Layers of full attention evict; sliding windows and recurrent states stay as transformers has them (`left_alone`).
    """

    def __init__(self, model: nn.Module, policy: Policy, budget: Budget, when: When) -> None:
        super().__init__(model)
        self.policy, self.budget, self.when = policy, budget, when
        self.engine: _Engine | None = None
        self.unfinished = 0  # layers that the pass under way, or one that was broken off, has not evicted from
        self.rotations = _rotations(model) if policy.reads_rotation else {}
        kinds = getattr(self._text_config(), "layer_types", None)
        evicting = [_layer(model, layer, kinds[i] if kinds else None) for i, layer in enumerate(self.layers)]
        if not any(evicting):
            found = ", ".join(sorted({type(layer).__name__ for layer in self.layers})) or "no layers"
            raise UnsupportedModelError(
                f"family '{family(model)}' has no layer of plain full attention to evict from: its cache has {found}"
            )
        self.layers = [made or layer for made, layer in zip(evicting, self.layers, strict=True)]

    @property
    def kept(self) -> list[KeptSets]:
        """The layers that evict."""
        return [layer for layer in self.layers if isinstance(layer, KeptSets)]

    @property
    def left_alone(self) -> list[int]:
        """Layers that keep what transformers keeps."""
        return [index for index, layer in enumerate(self.layers) if not isinstance(layer, KeptSets)]

    def begin(self, forward: Forward, given: Mapping[str, Any]) -> dict[str, Any]:
        if self.engine is None or not self.engine.open:
            raise InputError("the block of `evicting` that made this cache has ended: its keys can be read, not added to")
        mask = given.get("attention_mask")
        if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2):
            raise InputError("this cache writes the masks itself: give the attention_mask as (batch, tokens)")
        if self.unfinished:
            raise InputError("a pass with this cache was broken off, so its layers differ: start again with a new one")
        added = super().begin(forward, given)
        self.unfinished = len(self.kept)
        self.engine.start(self, forward)
        return added

    def reset(self) -> None:
        super().reset()
        self.unfinished = 0

    def _text_config(self) -> Any:
        return self._the_model().config.get_text_config()  # type: ignore[union-attr,operator]


@dataclass(eq=False)
class _Met:
    """A layer between its `update` and the end of its attention call."""

    layer: KeptSets
    call: EvictionCall


class _Engine(Editor):
    """Scores after each attention call, and evicts. Shared by the copies of a cache, one of which runs at a time."""

    def __init__(self, model: nn.Module) -> None:
        self.open = True
        self.modules = set(model.modules())
        self.cache: EvictingCache | None = None
        self.forward: Forward | None = None
        self.met: dict[nn.Module, _Met] = {}
        self.of: dict[nn.Module, KeptSets] = {}  # whose keys each module attended to in this pass
        self.mask: Tensor | None = None
        self.checked: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Engine:
        return self

    def start(self, cache: EvictingCache, forward: Forward) -> None:
        """A pass begins."""
        self.cache, self.forward = cache, forward
        self.met.clear()
        self.of.clear()
        self.mask = None
        for layer in cache.kept:
            layer.met = None

    def edits(self, module: nn.Module) -> bool:
        return self.cache is not None and module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self.cache is not None
        layers = self.cache.kept
        number = next((n for n, layer in enumerate(layers) if layer.met is not None), None)
        if number is None:  # an encoder's, or a window's: none that has just been given new keys
            if module in self.of:
                raise _refuse(module, "attends more than once to the keys of one pass, which are evicted after the first")
            return arguments
        layer, mask = layers[number], arguments.get("attention_mask")
        if isinstance(mask, Tensor) and mask is not self.mask:  # of a pass, most layers are given the same
            if is_bias(mask):
                raise _refuse(module, "its mask adds numbers to scores, which belong to keys in ways that are not known")
            self.mask = mask
        arguments = by_place(layer, module, implementation, arguments)
        self.met[module] = _Met(layer, self._call(layer, number, module, arguments))
        layer.met, self.of[module] = None, layer
        return arguments

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        met = self.met.pop(module, None)
        if met is not None:
            assert self.cache is not None
            with torch.no_grad():
                self._after(met.layer, met.call, self.cache, output)
            self.cache.unfinished -= 1
        return output

    def _call(self, layer: KeptSets, number: int, module: nn.Module, given: Mapping[str, Any]) -> EvictionCall:
        assert self.cache is not None
        assert self.forward is not None
        query, key, value = (given[name].detach() for name in ("query", "key", "value"))
        stored = layer.places.shape
        if key.shape[2] != stored[2] or key.shape[1] % stored[1]:
            raise _refuse(module, f"attends to {key.shape[2]} keys where the cache stores {stored[2]}")
        mask, scaling, sink = given.get("attention_mask"), given.get("scaling"), given.get("s_aux")
        more = key.shape[1] // stored[1]
        tokens = torch.full(query.shape[:1], layer.seen, device=query.device)
        tokens = tokens if layer.pads is None else tokens - layer.pads.to(query.device)
        return EvictionCall(
            query=query,
            key=key,
            value=value,
            places=layer.places.repeat_interleave(more, 1) if more > 1 else layer.places,
            real=layer.real.repeat_interleave(more, 1) if more > 1 else layer.real,
            total=layer.seen,
            scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            cache_heads=stored[1],
            module=module,
            layer=number,
            layers=len(self.cache.kept),
            pads=layer.pads,
            mask=mask.detach() if isinstance(mask, Tensor) else None,
            softcap=given.get("softcap"),
            sink=None if sink is None else sink.detach(),
            ids=self.forward.ids,
            rotation=self.cache.rotations.get(self.cache.layers.index(layer)),
            budget=self.cache.budget.of_layer(number, len(self.cache.kept), tokens),
            notes=layer.rows_of_notes(),
        )

    def _after(self, layer: KeptSets, call: EvictionCall, cache: EvictingCache, output: Tensor) -> None:
        """Take notes of a call that ran, score, and evict."""
        policy = cache.policy
        if policy.reads_weights and call.layer not in self.checked:
            _check_weights(call, output)
            self.checked.add(call.layer)
        call = _noted(layer, call, policy)
        several = call.queries > 1 or layer.limits is None
        if call.layer < policy.skipped:
            policy.score(call)
            return
        if several:
            scores = _pooled(policy.score(call), call.cache_heads)
            ranked = scores.masked_fill(~layer.real, -torch.inf)
            layer.evict(scores, cache.budget.of_heads(ranked, call.budget, call.layer), policy.merges)
        elif cache.when == "always" and (policy.drops or policy.merges):
            layer.evict(_pooled(policy.score(call), call.cache_heads), layer.limits, policy.merges)
        elif cache.when == "always" and layer.full:
            layer.evict_one(_pooled(policy.score(call), call.cache_heads))


@contextmanager
def evicting(
    model: nn.Module, policy: Policy | str, budget: Budget | int | float, when: When = "prefill"
) -> Iterator[EvictingCache]:
    """A cache for `model.generate(..., past_key_values=cache)` that keeps a budget of keys in each head.

    `policy`: a `Policy`, or a name of `POLICIES` with its defaults. `budget`: stored keys per head, a share (0, 1] of the
    tokens, or a `Budget`. `when`: "prefill" evicts after every pass of more than one token, and decoded tokens are
    added; "always" evicts after these as well, one key for each. Positions are true ones throughout. Padding on the
    left is followed: a row keeps what it would keep alone. Several caches of a model may be in use, one after the other.

    Raises `InputError` for a budget that the policy cannot keep to, and `UnsupportedModelError` for models in which
    nothing can be evicted, or whose attention is none of transformers' attention functions.
    """
    if when not in get_args(When):
        raise InputError(f"when is {when!r}, expected one of {', '.join(get_args(When))}")
    policy, budget, model = policy_of(policy), budget_of(budget), unwrapped(model)
    if budget.number is not None and budget.number < policy.least:
        raise InputError(
            f"a budget of {budget.number} keys per head is too small for {type(policy).__name__}, which always keeps "
            f"{policy.least - 1}: give at least {policy.least}"
        )
    cache = EvictingCache(model, policy, budget, when)
    _check_model(model, cache)
    engine = cache.engine = _Engine(model)
    try:
        with editing(engine):
            yield cache
    finally:
        engine.open = False
        engine.cache = None
        engine.met.clear()
        engine.of.clear()
        engine.modules.clear()
        engine.mask = engine.forward = None


def _check_model(model: nn.Module, cache: EvictingCache) -> None:
    if any(True for _ in own_attention(model)):
        raise UnsupportedModelError(
            f"family '{family(model)}' computes attention in code of its own, where stored keys cannot be told apart: "
            "eviction needs attention that dispatches through transformers' AttentionInterface (StreamingCache does not)"
        )
    attention_layers(model)
    config = cache._text_config()
    if getattr(config, "num_kv_shared_layers", 0) or getattr(config, "shares_kv", False):
        raise UnsupportedModelError(
            f"family '{family(model)}' has layers that read the keys of another layer, which would not see what it evicts"
        )
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    cache.budget.check(len(cache.kept), heads)


def _layer(model: nn.Module, layer: Any, kind: str | None) -> KeptSets | None:
    """What evicts in place of a transformers layer; None where it is to stay as it is."""
    if kind not in (None, "full_attention", "hybrid") and not isinstance(layer, LinearAttentionAndFullAttentionLayer):
        return None
    if type(layer) is DynamicLayer:
        return SlotsLayer()
    if type(layer) is LinearAttentionAndFullAttentionLayer:
        return HybridSlotsLayer(number_of_states=layer.number_of_states)
    return None


def _rotations(model: nn.Module) -> dict[int, Rotation | None]:
    """How each layer turns its keys, and its queries alike. Raises `UnsupportedModelError` where a latent is cached."""
    found = measured_rotations(model)
    if any(rotation.values is not None for rotation in found.values()):
        raise UnsupportedModelError(
            f"family '{family(model)}' caches a latent and turns a part of it: its queries cannot be turned back with it"
        )
    return {index: rotation.keys for index, rotation in found.items()}


def _noted(layer: KeptSets, call: EvictionCall, policy: Policy) -> EvictionCall:
    """The call with the notes that the policy needs, this pass among them; each may look at those before it."""
    for note in policy.needs:
        if isinstance(note, KeyNote):
            layer.slots.note(note, note.of_new(call))
            note.add(call, layer.slots[note])
        elif isinstance(note, RowNote):
            layer.rows[note] = note.after(call, layer.rows.get(note))
        call = call.noted(layer.rows_of_notes())
    return call


def _pooled(scores: Tensor, heads: int) -> Tensor:
    """Scores of the heads that the cache has: those that share a latent are averaged."""
    return scores if scores.shape[1] == heads else scores.unflatten(1, (heads, -1)).mean(2)


def _check_weights(call: EvictionCall, output: Tensor) -> None:
    """Refuse a layer whose output is not what the weights give that a policy is shown."""
    weights = call.weights(slice(-1, None)).flatten(1, 2)
    value = wide(call.value).repeat_interleave(call.group, 1)
    own, found = wide(output[:, -1]), torch.matmul(weights, value)[:, :, 0]
    if own.shape != found.shape or bool((own - found).abs().max() > AGREES * own.abs().max() + 1e-6):
        raise _refuse(call.module, "its output is not that of softmax attention as a policy is shown it")


def _refuse(module: nn.Module, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"family '{family(module)}', {type(module).__name__}: {reason}")
