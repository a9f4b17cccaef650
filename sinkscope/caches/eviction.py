"""Eviction inside an unmodified `generate()`: a cache, and the context in which it scores keys and evicts some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, get_args

from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer

from sinkscope.caches.budgets import Budget, Uniform, budget_of
from sinkscope.caches.evictor import Evictor, PassState, Plan, When
from sinkscope.caches.first_pass import Attended
from sinkscope.caches.following import Coming, FollowingCache
from sinkscope.caches.layers import HybridSlotsLayer, KeptSets, SlotsLayer
from sinkscope.caches.own_attention import ModuleEvictor, check_own
from sinkscope.caches.policies import Policy, policy_of
from sinkscope.caches.protect import Protect
from sinkscope.caches.rotation import Rotation, measured_rotations
from sinkscope.caches.streaming import Renumbered, StreamingCache
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Forward, attention_layers, family, own_attention, text_config, unwrapped, with_cache
from sinkscope.sinks import Choice, Tokens, parse


class EvictingCache(FollowingCache):
    """A cache that keeps a budget of keys per head, chosen by a policy. Created by `evicting`, and used inside it.

    Layers of full attention evict; sliding windows and recurrent states stay as transformers has them (`left_alone`).
    """

    def __init__(self, model: nn.Module, policy: Policy, budget: Budget, when: When) -> None:
        super().__init__(model)
        self.evictor: Evictor | None = None
        self.pass_state = PassState()
        kinds = getattr(text_config(model), "layer_types", None)
        layers: list[Any] = list(self.layers)
        evicting = [_layer(layer, kinds[index] if kinds else None) for index, layer in enumerate(layers)]
        if not any(evicting):
            kinds_of_layers = ", ".join(sorted({type(layer).__name__ for layer in layers})) or "no layers"
            raise UnsupportedModelError(
                f"family '{family(model)}' has no layer of plain full attention to evict from, only {kinds_of_layers}"
            )
        self.layers: list[Any] = [made or layer for made, layer in zip(evicting, layers, strict=True)]
        for layer in self.kept:
            layer.note_names = {repr(note): note for note in policy.needs}
        self.plan = Plan(policy, budget, when, self._rotations(model) if policy.reads_rotation else {})

    @property
    def kept(self) -> list[KeptSets]:
        """The layers that evict."""
        return [layer for layer in self.layers if isinstance(layer, KeptSets)]

    @property
    def left_alone(self) -> list[int]:
        """Indices of the layers that keep what transformers keeps."""
        return [index for index, layer in enumerate(self.layers) if not isinstance(layer, KeptSets)]

    @property
    def settings(self) -> dict[str, Any]:
        plan = self.plan
        return super().settings | {"policy": plan.policy.describe(), "budget": repr(plan.budget), "when": plan.when}

    def begin(self, forward: Forward, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if self.evictor is None or not self.evictor.open:
            raise InputError(
                "the `evicting` block that made this cache has ended: its keys can be read but not extended"
            )
        mask = inputs.get("attention_mask")
        if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2):
            raise InputError("this cache makes its own masks: give the attention_mask as (batch, tokens)")
        self.evictor.start(self.plan, self.kept, self.pass_state, forward)
        self.pass_state.unfinished = 0  # until the pass has been accepted
        added = super().begin(forward, inputs)
        self.pass_state.unfinished = len(self.kept)
        return added

    def take_over(self, ids: Tensor, states: Sequence[tuple[Tensor, Tensor]], calls: Sequence[Attended]) -> bool:
        """Hold what is left of a first pass over `ids`, from what each layer cached in it and how it attended.

        `states`: keys and values, or the latent that a family caches in their place; `calls`: of the attention
        functions, from `first_pass.recording`.

        False, and nothing done, where layers are left alone or have states, and where a model's attention was not seen.
        """
        counts = {len(self.layers), len(states), len(calls)}
        if self.get_seq_length() or len(counts) > 1 or isinstance(self.evictor, ModuleEvictor):
            return False
        if not all(type(layer) is SlotsLayer for layer in self.layers):
            return False
        model = self._the_model()
        inputs = {"input_ids": ids, "use_cache": True} | with_cache(model, self)
        self.begin(Forward.of(model, (), inputs), inputs)
        assert self.evictor is not None
        for layer, (keys, values), call in zip(self.layers, states, calls, strict=True):
            # Copies: others go on from the same states, and some policies round or merge what they keep in place.
            layer.update(keys.clone(), values.clone())
            self.evictor.given(call.module, call.implementation, dict(call.arguments))
            self.evictor.returned(call.module, call.output)
        return True

    def expect(self, coming: Coming) -> None:
        super().expect(coming)
        self.pass_state.expect(coming)

    def reset(self) -> None:
        super().reset()
        self.pass_state.unfinished = 0

    def _rotations(self, model: nn.Module) -> dict[int, Rotation | None]:
        """How each evicting layer rotates its keys and queries.

        Raises `UnsupportedModelError` if a latent is cached.
        """
        rotations = measured_rotations(model)
        if any(rotation.values is not None for rotation in rotations.values()):
            raise UnsupportedModelError(
                f"family '{family(model)}' caches a latent and rotates part of it: its queries cannot be rotated back"
            )
        indices = [index for index, layer in enumerate(self.layers) if isinstance(layer, KeptSets)]
        return {number: rotations[index].keys for number, index in enumerate(indices)}


@contextmanager
def evicting(
    model: nn.Module,
    policy: Policy | str,
    budget: Budget | int | float,
    when: When = "prefill",
    *,
    protect: Choice | Tokens | str | None = None,
    recent: int = 0,
) -> Iterator[EvictingCache]:
    """A cache for `model.generate(..., past_key_values=cache)` that keeps a budget of keys in each head.

    Positions are the true ones throughout. Padding on the left is followed: a row keeps what it would keep alone.
    Several caches of one model may be used in turns. With when="prefill", policies that use the last queries (SnapKV,
    TOVA, expected attention) score a pass of several tokens by that pass's own queries, because none of earlier passes
    are kept.

    Args:
        model: A decoder from transformers, or a lab model.
        policy: A `Policy`, or a name in `POLICIES`, with its defaults.
        budget: Stored keys per head, a share (0, 1] of the tokens, or a `Budget`.
        when: "prefill" evicts after every pass of more than one token and keeps all decoded tokens; "always" also
            evicts one key after each decoded token.
        protect: Tokens that are never evicted (`Protect`): a choice, its words ("first:4", "online"), or `Tokens`.
        recent: How many of the newest tokens are never evicted.

    Raises `InputError` for a budget that is too small for the policy, and `UnsupportedModelError` for models in which
    nothing can be evicted or whose attention does not use transformers' attention functions.
    """
    if when not in get_args(When):
        raise InputError(f"when is {when!r}, expected one of {', '.join(get_args(When))}")
    policy, model = policy_of(policy), unwrapped(model)
    if protect is not None or recent:
        policy = Protect(policy, parse(protect) if isinstance(protect, str) else protect, recent)
    budget = policy.spread(budget_of(budget)).around(policy.least - 1)
    if budget.number is not None and budget.number < policy.least:
        raise InputError(_too_small(policy, budget, budget.number))
    cache = EvictingCache(model, policy, budget, when)
    _check_model(model, cache)
    evictor = cache.evictor = ModuleEvictor(model) if own_attention(model) else Evictor(model)
    try:
        with ExitStack() as stack:
            evictor.attach(model, stack)
            yield cache
    finally:
        evictor.stop()
        evictor.open = False
        evictor.modules.clear()


@contextmanager
def caching(
    model: nn.Module,
    policy: Policy | Renumbered | str,
    keys: Budget | int | float,
    when: When = "prefill",
    *,
    protect: Choice | Tokens | str | None = None,
    recent: int = 0,
) -> Iterator[EvictingCache | StreamingCache]:
    """`evicting`, or a `StreamingCache` with so many keys if `policy` is a `Renumbered` or "streaming-cache".

    Other arguments as in `evicting`.

    Args:
        keys: The budget of `evicting`; for a stream, stored keys per head, a whole number.

    Raises `InputError` if a stream is asked to protect tokens other than its first and newest, or its number of keys is
    given as a share.
    """
    if policy != Renumbered.name and not isinstance(policy, Renumbered):
        with evicting(model, policy, keys, when, protect=protect, recent=recent) as cache:
            yield cache
        return
    stream = policy if isinstance(policy, Renumbered) else Renumbered()
    if protect is not None and protect != "none":
        raise InputError("a StreamingCache keeps its first and newest tokens and protects no others")
    if not isinstance(keys, int):
        raise InputError(f"a StreamingCache needs a number of keys that does not depend on the text, not {keys!r}")
    yield stream.cache(unwrapped(model), keys)


def _too_small(policy: Policy, budget: Budget, number: int) -> str:
    name = f"Protect({type(policy.policy).__name__})" if isinstance(policy, Protect) else type(policy).__name__
    needed = f"too small for {name}, which always keeps {policy.least - 1}"
    if isinstance(budget, Uniform):
        return f"a budget of {number} keys per head is {needed}: give at least {policy.least}"
    return (
        f"{type(budget).__name__} may leave a head {number} key{'s' * (number > 1)}, {needed}: it must leave every "
        f"head {policy.least}"
    )


def _check_model(model: nn.Module, cache: EvictingCache) -> None:
    if own_attention(model):
        check_own(model, cache.plan)
    else:
        attention_layers(model)
    config = text_config(model)
    if getattr(config, "num_kv_shared_layers", 0) or getattr(config, "shares_kv", False):
        raise UnsupportedModelError(
            f"family '{family(model)}' has layers that read another layer's keys and would not know about evictions"
        )
    if (skipped := cache.plan.policy.skipped) >= len(cache.kept):
        raise InputError(
            f"the policy keeps everything in the first {skipped} evicting layers, and this model has "
            f"{len(cache.kept)}: nothing would be evicted; skip at most {len(cache.kept) - 1}"
        )
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if (reason := cache.plan.budget.fits(len(cache.kept), heads)) is not None:
        raise InputError(reason)


def _layer(layer: Any, kind: str | None) -> KeptSets | None:
    """The evicting layer that replaces a transformers layer; None to keep that one."""
    if kind not in (None, "full_attention", "hybrid") and not isinstance(layer, LinearAttentionAndFullAttentionLayer):
        return None
    if type(layer) is DynamicLayer:
        return SlotsLayer()
    if type(layer) is LinearAttentionAndFullAttentionLayer:
        return HybridSlotsLayer(number_of_states=layer.number_of_states)
    return None
