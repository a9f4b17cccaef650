"""The editor of attention calls that scores keys after each call and evicts some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention.scores import wide
from sinkscope.caches.budgets import Budget
from sinkscope.caches.call import EvictionCall
from sinkscope.caches.following import Coming
from sinkscope.caches.layers.groups import Group, grouped_attention, query_heads
from sinkscope.caches.layers.rectangle import Slots
from sinkscope.caches.layers.slots import KeptSets, StackView
from sinkscope.caches.layers.stack import Stack, opened, stacked
from sinkscope.caches.masks import by_place, is_bias, is_plain, of_group, seen_by_one, unsupported
from sinkscope.caches.notes import KeyNote, Note, RowNote
from sinkscope.caches.policies import Policy
from sinkscope.caches.rotation import Rotation
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, Forward, editing, family

When = Literal["prefill", "always"]
STEADY = 2  # decoded tokens after which layers are stacked; beam search, which selects rows each time, never gets there
AGREES = 0.02  # tolerated difference of a layer's output from weights · values, relative to the largest output
TENSORS = ("query", "key", "value", "attention_mask")


@dataclass(frozen=True, eq=False)
class Plan:
    """What to evict and when. `rotations`: by layer number, how evicting layers rotate keys, if the policy asks."""

    policy: Policy
    budget: Budget
    when: When
    rotations: Mapping[int, Rotation | None] = field(default_factory=dict)

    @cached_property
    def lasting(self) -> tuple[Note, ...]:
        """Notes to keep between passes, because a later pass may need them."""
        return tuple(note for note in self.policy.needs if self.when == "always" or not note.one_pass)


@dataclass
class PassState:
    """A cache's stacks, and how many layers have not yet evicted in the current or an interrupted pass."""

    unfinished: int = 0
    stacks: list[Stack] = field(default_factory=list)

    def expect(self, coming: Coming) -> None:
        """Begin a pass."""
        self.stacks = opened(self.stacks, coming)


@dataclass(eq=False)
class PendingCall:
    """A layer between its `update` and the end of its attention call."""

    layer: KeptSets
    call: EvictionCall
    plain: bool  # whether later calls may compute groups of heads separately; set for passes of several tokens
    query: Tensor | None = None
    calls: Sequence[EvictionCall] = ()  # one per group of heads, if the layer has groups


@dataclass(eq=False)
class Step:
    """A stacked layer between its `update` and the end of its attention call, for one decoded token.

    `inputs`: the attention function's arguments. `weighed`: the token's weights are in the layer's `view`.
    """

    module: nn.Module
    layer: KeptSets
    view: StackView
    number: int
    inputs: Mapping[str, Any]
    implementation: str | None
    weighed: bool = False

    def can_attend(self, reads_weights: bool) -> bool:
        """Whether it is a plain softmax in the precision of scores, and computing the weights is the faster way.

        It is if the weights are needed anyway, and on a CPU, whose kernel is made for many queries.
        """
        query, key = self.inputs["query"], self.inputs["key"]
        return (
            (reads_weights or query.device.type == "cpu")
            and self.implementation in (None, "eager", "sdpa")
            and is_plain(self.module, dict(self.inputs))
            and query.dtype == key.dtype == self.view.weights.dtype
            and not (torch.is_grad_enabled() and query.requires_grad)
        )

    def attend(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention that keeps its weights; the `original` function if another editor has changed its arguments.

        Every slot is visible: none is empty, and no key is newer than the query. The arguments after `original` are
        those of an attention function of transformers.
        """
        tensors = query, key, value, attention_mask
        if any(tensor is not self.inputs.get(name) for name, tensor in zip(TENSORS, tensors, strict=True)):
            return original(module, *tensors, **more)
        scaling = self.inputs.get("scaling")
        output = single_query_attention(
            query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling, self.view.weights[:, :, :, 0]
        )
        self.weighed = True
        eager = self.implementation in (None, "eager")  # which returns weights too
        # A clone, because the next token overwrites the view.
        return output, self.view.weights.flatten(1, 2).clone() if eager else None


def single_query_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    scaling: float,
    weights: Float[Tensor, "batch kv_heads group key"],
) -> Float[Tensor, "batch 1 heads value_dim"]:
    """softmax(q·k · scaling) · v for one query that sees every key.

    Args:
        query, key, value: q, k and v, of the dtype of `weights`.
        scaling: Factor of q·k.
        weights: Where the weights are written; query heads by key-value head.
    """
    batch, heads, _, dim = query.shape
    packed = (query * scaling).view(batch, key.shape[1], -1, dim)
    torch.softmax(torch.matmul(key, packed.mT).mT, -1, out=weights)  # twice as fast as packed · keyᵀ on a CPU
    return torch.matmul(weights, value).view(batch, 1, heads, value.shape[3])


def stack_call(stack: Stack, steps: list[Step], layers: int, ids: Tensor | None, reads_weights: bool) -> EvictionCall:
    """The call that a policy sees for all layers of a stack.

    Args:
        stack: The layers, as rows of one batch.
        steps: One step per layer, in the stack's order.
        layers: How many layers evict.
        ids: Token ids of the pass; None if unknown.
        reads_weights: Whether the policy gets the weights that the layers computed.
    """
    first, rows = steps[0], stack.rows
    query, scaling = torch.cat([step.inputs["query"] for step in steps]), first.inputs.get("scaling")
    return EvictionCall(
        query=query,
        key=rows["keys"],
        value=rows["values"],
        places=rows["places"],
        total=first.layer.seen,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        cache_heads=rows["places"].shape[1],
        budget=stack.budget,
        module=first.module,
        layer=first.number,
        layers=layers,
        ids=None if ids is None else ids.repeat(len(steps), 1),
        notes=stack.notes,
        rotation=stack.rotation,
        at=stack.hole,
        known=stack.weights if reads_weights else None,
        lowest=True,
    )


class Evictor(Editor):
    """Scores keys after each attention call and evicts. Copies of a cache share it; one of them runs at a time."""

    def __init__(self, model: nn.Module) -> None:
        self.open = True
        self.modules = set(model.modules())
        self.plan: Plan | None = None
        self.layers: list[KeptSets] = []
        self.state = PassState()
        self.forward: Forward | None = None
        self.pending: dict[nn.Module, PendingCall | Step] = {}
        self.steps: list[Step] = []  # this pass's calls in stacked layers
        self.ready: list[tuple[KeptSets, int, Rotation | None]] = []  # layers to stack, query heads, rotations
        self.layer_of: dict[nn.Module, KeptSets] = {}  # whose keys each module attended to in this pass
        self.mask: Tensor | None = None
        self.checked: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Evictor:
        return self

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        """Edit the model's attention calls for as long as `stack` is open."""
        stack.enter_context(editing(self))

    def start(self, plan: Plan, layers: list[KeptSets], state: PassState, forward: Forward) -> None:
        """Begin a pass. Raises `InputError` if the previous one was interrupted."""
        if state.unfinished:
            raise InputError("a pass with this cache was interrupted, so its layers differ: start with a new cache")
        self.stop()
        self.plan, self.layers, self.state, self.forward = plan, layers, state, forward
        state.unfinished = len(layers)
        for layer in layers:
            layer.pending = None

    def stop(self) -> None:
        """End a pass and release what belongs to it."""
        self.plan, self.layers, self.forward, self.mask = None, [], None, None
        self.pending.clear()
        self.steps.clear()
        self.ready.clear()
        self.layer_of.clear()

    def edits(self, module: nn.Module) -> bool:
        return self.plan is not None and module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        # A call does not name its cache layer: it is the one that was updated and has not been attended to yet.
        number = next((n for n, layer in enumerate(self.layers) if layer.pending is not None), None)
        if number is None:  # no layer has new keys: an encoder's call, or a sliding window's
            if module in self.layer_of:
                raise unsupported(module, "attends twice to the keys of one pass, which are evicted after the first")
            return arguments
        layer, mask = self.layers[number], arguments.get("attention_mask")
        if isinstance(mask, Tensor) and mask is not self.mask:  # most layers of a pass share one mask
            if is_bias(mask):
                raise unsupported(module, "its mask adds a bias to scores that cannot be assigned to the kept keys")
            self.mask = mask
        layer.pending, self.layer_of[module] = None, layer
        if layer.view is not None:
            return self._begin_step(layer, layer.view, number, module, implementation, arguments)
        if layer.groups is not None:
            return self._begin_groups(layer, number, module, implementation, arguments)
        arguments = by_place(layer, module, implementation, arguments)
        several = arguments["query"].shape[2] > 1 or layer.limits is None
        plain = several and implementation in (None, "eager", "sdpa") and is_plain(module, arguments)
        self.pending[module] = PendingCall(layer, self._call(layer, number, module, arguments), plain)
        return arguments

    def _begin_step(
        self,
        layer: KeptSets,
        view: StackView,
        number: int,
        module: nn.Module,
        implementation: str | None,
        arguments: dict[str, Any],
    ) -> dict[str, Any]:
        """Stacked layers are scored and evict once the last of them has attended."""
        if not _attends_to(layer, arguments):
            raise unsupported(module, "its keys were changed between the cache and the attention function")
        arguments = seen_by_one(module, implementation, arguments)
        step = self.pending[module] = Step(module, layer, view, number, arguments, implementation)
        self.steps.append(step)
        return arguments

    def attending(self, module: nn.Module, attend: Callable[..., Any]) -> Callable[..., Any]:
        step = self.pending.get(module)
        if self.plan is None or not isinstance(step, Step) or not step.can_attend(self.plan.policy.reads_weights):
            return attend
        return partial(step.attend, attend)

    def _begin_groups(
        self, layer: KeptSets, number: int, module: nn.Module, implementation: str | None, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """The function runs on the first group of heads; `returned` computes the output of the other one."""
        groups = layer.groups or []
        # The stand-in that `KeptSets.update` returned has stride 0; what has been computed from it does not.
        if arguments["key"].stride(2) or not is_plain(module, arguments):
            raise unsupported(module, "its keys were changed between the cache and the attention function")
        per_kv_head = arguments["query"].shape[1] // sum(len(group.heads) for group in groups)
        inputs = [of_group(group, layer, implementation, arguments, per_kv_head) for group in groups]
        calls = [self._call(layer, number, module, *both) for both in zip(inputs, groups, strict=True)]
        self.pending[module] = PendingCall(layer, calls[0], True, arguments["query"], calls)
        return inputs[0]

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        pending = self.pending.pop(module, None)
        if pending is None:
            return output
        assert self.plan is not None
        if isinstance(pending, Step):
            if self.plan.policy.reads_weights and not pending.weighed:
                self._weigh(pending)
        elif pending.calls:
            output = self._after_groups(pending, self.plan, output)
        else:
            self._after(pending, self.plan, output)
        if self.state.unfinished == 1:
            self._end(self.plan)
        self.state.unfinished -= 1
        if not self.state.unfinished:
            self.stop()
        return output

    @torch.no_grad()
    def _end(self, plan: Plan) -> None:
        """After the last layer has attended: evict from stacks, or build them."""
        for stack in self.state.stacks:
            steps = [step for step in self.steps if step.view.stack is stack.identity]
            ids = None if self.forward is None else self.forward.ids
            call = stack_call(stack, steps, len(self.layers), ids, plan.policy.reads_weights)
            _update_notes(stack, call, plan.policy.needs, stack)
            stack.close(plan.policy.score(call))
        if plan.policy.together and not self.state.stacks:
            self.state.stacks = stacked(self.ready)

    def _call(
        self, layer: KeptSets, number: int, module: nn.Module, inputs: Mapping[str, Any], group: Group | None = None
    ) -> EvictionCall:
        assert self.plan is not None
        assert self.forward is not None
        query, key, value = inputs["query"], inputs["key"], inputs["value"]
        slots = layer.slots if group is None else group.slots
        places = slots["places"]
        stored = places.shape
        if key.shape[2] != stored[2] or key.shape[1] % stored[1]:
            raise unsupported(module, f"attends to {key.shape[2]} keys, but the cache stores {stored[2]}")
        mask, scaling, sink = inputs.get("attention_mask"), inputs.get("scaling"), inputs.get("s_aux")
        # A cached latent is expanded to more heads before attention.
        per_cache_head = key.shape[1] // stored[1]
        return EvictionCall(
            query=query,
            key=key,
            value=value,
            places=places.repeat_interleave(per_cache_head, 1) if per_cache_head > 1 else places,
            total=layer.seen,
            scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            cache_heads=stored[1],
            module=module,
            layer=number,
            layers=len(self.layers),
            pads=layer.pads,
            mask=mask if isinstance(mask, Tensor) else None,
            softcap=inputs.get("softcap"),
            sink=sink,
            ids=self.forward.ids,
            rotation=self.plan.rotations.get(number),
            budget=self._budget(layer, number, query),
            notes=layer.notes_of(slots),
        )

    def _budget(self, layer: KeptSets, number: int, query: Tensor) -> Tensor:
        """Keys that a head may keep on average; a decoded token uses the decision of the pass before."""
        assert self.plan is not None
        if query.shape[2] == 1 and layer.count is not None:
            return layer.count
        tokens = torch.full(query.shape[:1], layer.seen, device=query.device)
        tokens = tokens if layer.pads is None else tokens - layer.pads.to(query.device)
        return self.plan.budget.of_layer(number, len(self.layers), tokens)

    @torch.no_grad()
    def _weigh(self, step: Step) -> None:
        """Compute a token's weights in a stacked layer whose attention function did not provide them."""
        step.view.weights.copy_(self._call(step.layer, step.number, step.module, step.inputs).weights())

    @torch.no_grad()
    def _after(self, pending: PendingCall, plan: Plan, output: Tensor) -> None:
        """After an attention call: update notes, score, evict."""
        policy, layer, call = plan.policy, pending.layer, pending.call
        if policy.reads_weights and call.layer not in self.checked:
            _check_weights(call, output)
            self.checked.add(call.layer)
        # Before the first eviction there are no limits, so a single token is treated like a pass of several.
        several = call.queries > 1 or layer.limits is None
        _update_notes(layer.slots, call, policy.needs if several else plan.lasting, layer)
        if call.layer >= policy.skipped:  # the layers before keep everything
            self._evict(plan, layer, call, several)
        if several:
            layer.forget([note for note in policy.needs if note not in plan.lasting])
            # Eviction and rounding work on one rectangle: heads are split only if decoded tokens do neither.
            if plan.when == "prefill" and pending.plain and layer.gaps and policy.rounding is None:
                layer.regroup()
        if policy.rounding is not None:
            if call.cache_heads != call.key.shape[1]:
                raise UnsupportedModelError(
                    f"family '{family(call.module)}' caches a latent, not the keys and values that "
                    f"{type(policy).__name__} rounds: leave its rounding out"
                )
            layer.round_new(policy.rounding, call.total - call.queries)

    @torch.no_grad()
    def _evict(self, plan: Plan, layer: KeptSets, call: EvictionCall, several: bool) -> None:
        """Score the keys of a call and evict some, where the plan evicts now."""
        policy = plan.policy
        if several:
            scores = _pooled(policy.score(call), call.cache_heads)
            # Scores of padding are arbitrary and must not attract a part of the budget.
            ranked = scores.masked_fill(~layer.real, -torch.inf)
            limits = plan.budget.of_heads(ranked, call.budget, call.layer)
            layer.evict(scores, limits, call.budget, policy.merges)
        elif plan.when == "always" and layer.limits is not None and (policy.drops or policy.merges):
            layer.evict(_pooled(policy.score(call), call.cache_heads), layer.limits, call.budget, policy.merges)
        elif plan.when == "always" and layer.full:
            if policy.together and layer.steady >= STEADY and _attends_to(layer, vars(call)):
                self.ready.append((layer, call.query.shape[1], call.rotation))
            call = replace(call, lowest=not layer.gaps and layer.pads is None)
            layer.evict_one(_pooled(policy.score(call), call.cache_heads))

    def _after_groups(self, pending: PendingCall, plan: Plan, output: Tensor) -> Tensor:
        """One token on two rectangles: the other group's output, and the notes of both."""
        assert pending.query is not None
        assert pending.layer.groups is not None
        least = 0 if pending.layer.pads is None else pending.layer.pads[:, None, None].to(output.device)
        of_keys = [note for note in plan.lasting if isinstance(note, KeyNote)]
        # (batch, query, heads, value_dim), as attention functions return it.
        joined = output.new_empty(*output.shape[:2], pending.query.shape[1], output.shape[3])
        for number, (group, call) in enumerate(zip(pending.layer.groups, pending.calls, strict=True)):
            if number:
                output = grouped_attention(group, call.query, least, call.scaling).transpose(1, 2)
            joined[:, :, query_heads(group, call.group)] = output
            _update_notes(group.slots, call, of_keys, pending.layer)
        # Notes of samples cover all query heads, so they get the undivided query, and only once.
        whole = replace(pending.call, query=pending.query.detach())
        of_samples = [note for note in plan.lasting if isinstance(note, RowNote)]
        _update_notes(pending.layer.groups[0].slots, whole, of_samples, pending.layer)
        return joined


def _attends_to(layer: KeptSets, inputs: Mapping[str, Any]) -> bool:
    """Whether a call attends to exactly what the layer stores."""
    slots, view = layer.slots, layer.view
    if view is not None and inputs["key"] is view.keys and inputs["value"] is view.values:
        return True
    stored = (slots["keys"], slots["values"]) if view is None else (view.keys, view.values)
    pairs = zip((inputs["key"], inputs["value"]), stored, strict=True)
    return all(a.shape == b.shape and a.stride() == b.stride() and a.data_ptr() == b.data_ptr() for a, b in pairs)


def _update_notes(slots: Slots | Stack, call: EvictionCall, notes: Sequence[Note], owner: KeptSets | Stack) -> None:
    """Add this pass to the notes: of keys in `slots`, of samples in `owner`. A note may read those before it."""
    for note in notes:
        if isinstance(note, KeyNote):
            slots.note(note, note.of_new(call))
            note.add(call, slots[note])
        else:
            owner.keep_samples(note, note.after(call, owner.samples.get(note)))


def _pooled(scores: Tensor, heads: int) -> Tensor:
    """Scores per head of the cache: heads that share a latent are averaged."""
    return scores if scores.shape[1] == heads else scores.unflatten(1, (heads, -1)).mean(2)


def _check_weights(call: EvictionCall, output: Tensor) -> None:
    """Refuse a layer whose output differs from what the weights shown to policies give."""
    weights = call.weights(slice(-1, None)).flatten(1, 2)
    value = wide(call.value).repeat_interleave(call.group, 1)
    # (batch, heads, value_dim), for the last query
    of_layer, of_weights = wide(output[:, -1]), torch.matmul(weights, value)[:, :, 0]
    tolerance = AGREES * of_layer.abs().max() + 1e-6
    if of_layer.shape != of_weights.shape or bool((of_layer - of_weights).abs().max() > tolerance):
        raise unsupported(call.module, "its output is not that of the softmax attention that policies are shown")
