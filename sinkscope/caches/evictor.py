"""The editor of attention calls that scores keys after each call, and drops some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.caches.budgets import Budget
from sinkscope.caches.call import EvictionCall, wide
from sinkscope.caches.following import Coming
from sinkscope.caches.layers.groups import Group, grouped_attention, query_heads
from sinkscope.caches.layers.rectangle import Slots
from sinkscope.caches.layers.slots import KeptSets, Part
from sinkscope.caches.layers.stack import Stack, opened, stacked
from sinkscope.caches.masks import by_place, is_bias, is_plain, of_group, seen_by_one
from sinkscope.caches.notes import KeyNote, Note, RowNote
from sinkscope.caches.policies import Policy
from sinkscope.caches.rotation import Rotation
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, Forward, editing, family

GIVEN = ("query", "key", "value", "attention_mask")


@dataclass(eq=False)
class Step:
    """A layer between its `update` and the end of its attention call. `given`: what the attention function was given;
    `made`: whether the weights of this token are in the layer's part by now."""

    module: nn.Module
    layer: KeptSets
    part: Part
    number: int
    given: Mapping[str, Any]
    implementation: str | None
    made: bool = False

    def can_attend(self, reads_weights: bool) -> bool:
        """Whether it is a plain softmax in the precision that weights are computed in, and this is the faster way.

        So it is where the weights are asked for, and on a CPU, whose kernel is made for many queries.
        """
        query, key = self.given["query"], self.given["key"]
        return (
            (reads_weights or query.device.type == "cpu")
            and self.implementation in (None, "eager", "sdpa")
            and is_plain(self.module, dict(self.given))
            and query.dtype == key.dtype == self.part.weights.dtype
            and not (torch.is_grad_enabled() and query.requires_grad)
        )

    def attend(
        self,
        otherwise: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """What the attention function gives, by way of weights that are kept; `otherwise` where others changed more.

        Every slot is seen: none is empty, and their keys are older than the query.
        """
        found = query, key, value, attention_mask
        if any(one is not self.given.get(name) for name, one in zip(GIVEN, found, strict=True)):
            return otherwise(module, *found, **more)
        scaling = self.given.get("scaling")
        output = single_query_attention(
            query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling, self.part.weights[:, :, :, 0]
        )
        self.made = True
        eager = self.implementation in (None, "eager")  # which returns weights too
        return output, self.part.weights.flatten(1, 2).clone() if eager else None


def single_query_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    scaling: float,
    weights: Float[Tensor, "batch kv_heads group key"],
) -> Float[Tensor, "batch 1 heads value_dim"]:
    """softmax(q·k · scaling) · v for one query that sees every key; its weights are written to `weights`."""
    batch, heads, _, dim = query.shape
    packed = (query * scaling).view(batch, key.shape[1], -1, dim)
    torch.softmax(torch.matmul(key, packed.mT).mT, -1, out=weights)  # twice as fast as packed · keyᵀ on a CPU
    return torch.matmul(weights, value).view(batch, 1, heads, value.shape[3])


def call_of(stack: Stack, steps: list[Step], layers: int, ids: Tensor | None, weighs: bool) -> EvictionCall:
    """The call that a policy is shown for all layers of a stack, of so many `layers` that evict; `weighs`: with the
    weights of this token."""
    first, rows = steps[0], stack.rows
    query, scaling = torch.cat([step.given["query"] for step in steps]), first.given.get("scaling")
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
        known=stack.weights if weighs else None,
        lowest=True,
    )


When = Literal["prefill", "always"]
STEADY = 2  # decoded tokens after which layers are stacked: beams, whose rows are chosen after each, never are
AGREES = 0.02  # of the largest output: by how much a layer's own output may differ from what its weights say


@dataclass(frozen=True, eq=False)
class Plan:
    """What is evicted when. `rotations`: how evicting layers turn their keys, by number, where the policy asks."""

    policy: Policy
    budget: Budget
    when: When
    rotations: Mapping[int, Rotation | None] = field(default_factory=dict)

    @cached_property
    def lasting(self) -> tuple[Note, ...]:
        """Notes that are kept between passes: those that a later one may ask for."""
        return tuple(note for note in self.policy.needs if self.when == "always" or not note.one_pass)


@dataclass
class Progress:
    """Of a cache: layers that the pass under way, or one that was broken off, has not evicted from, and its stacks."""

    unfinished: int = 0
    stacks: list[Stack] = field(default_factory=list)

    def expect(self, coming: Coming) -> None:
        """A pass begins."""
        self.stacks = opened(self.stacks, coming)


@dataclass(eq=False)
class Met:
    """A layer between its `update` and the end of its attention call."""

    layer: KeptSets
    call: EvictionCall
    plain: bool  # whether heads may be taken apart at later calls; asked of passes of several tokens
    query: Tensor | None = None
    calls: Sequence[EvictionCall] = ()  # where the layer has groups of heads


class Engine(Editor):
    """Scores after each attention call, and evicts. Shared by the copies of a cache, one of which runs at a time."""

    def __init__(self, model: nn.Module) -> None:
        self.open = True
        self.modules = set(model.modules())
        self.plan: Plan | None = None
        self.layers: list[KeptSets] = []
        self.progress = Progress()
        self.forward: Forward | None = None
        self.met: dict[nn.Module, Met | Step] = {}
        self.steps: list[Step] = []  # of this pass, in the layers of stacks
        self.ready: list[tuple[KeptSets, int, Rotation | None]] = []  # layers that may go into one
        self.of: dict[nn.Module, KeptSets] = {}  # whose keys each module attended to in this pass
        self.mask: Tensor | None = None
        self.checked: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        return self

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        """Edit the model's attention calls for as long as `stack` is open."""
        stack.enter_context(editing(self))

    def start(self, plan: Plan, layers: list[KeptSets], progress: Progress, forward: Forward) -> None:
        """A pass begins. Raises `InputError` where the one before it broke off."""
        if progress.unfinished:
            raise InputError("a pass with this cache was broken off, so its layers differ: start again with a new one")
        self.stop()
        self.plan, self.layers, self.progress, self.forward = plan, layers, progress, forward
        progress.unfinished = len(layers)
        for layer in layers:
            layer.met = None

    def stop(self) -> None:
        """A pass has ended: nothing of it is held."""
        self.plan, self.layers, self.forward, self.mask = None, [], None, None
        self.met.clear()
        self.steps.clear()
        self.ready.clear()
        self.of.clear()

    def edits(self, module: nn.Module) -> bool:
        return self.plan is not None and module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        number = next((n for n, layer in enumerate(self.layers) if layer.met is not None), None)
        if number is None:  # an encoder's, or a window's: none that has just been given new keys
            if module in self.of:
                raise _refuse(
                    module, "attends more than once to the keys of one pass, which are evicted after the first"
                )
            return arguments
        layer, mask = self.layers[number], arguments.get("attention_mask")
        if isinstance(mask, Tensor) and mask is not self.mask:  # of a pass, most layers are given the same
            if is_bias(mask):
                raise _refuse(
                    module, "its mask adds numbers to scores, which belong to keys in ways that are not known"
                )
            self.mask = mask
        layer.met, self.of[module] = None, layer
        if layer.part is not None:
            return self._given_step(layer, layer.part, number, module, implementation, arguments)
        if layer.groups is not None:
            return self._given_groups(layer, number, module, implementation, arguments)
        arguments = by_place(layer, module, implementation, arguments)
        several = arguments["query"].shape[2] > 1 or layer.limits is None
        plain = several and _may_group(module, implementation, arguments)
        self.met[module] = Met(layer, self._call(layer, number, module, arguments), plain)
        return arguments

    def _given_step(
        self,
        layer: KeptSets,
        part: Part,
        number: int,
        module: nn.Module,
        implementation: str | None,
        given: dict[str, Any],
    ) -> dict[str, Any]:
        """What is done to the layers of a stack at once waits for the last of them."""
        if not _attends_to(layer, given):
            raise _refuse(module, "its keys were changed between the cache and the attention function")
        given = seen_by_one(module, implementation, given)
        step = self.met[module] = Step(module, layer, part, number, given, implementation)
        self.steps.append(step)
        return given

    def attending(self, module: nn.Module, attend: Callable[..., Any]) -> Callable[..., Any]:
        met = self.met.get(module)
        if self.plan is None or not isinstance(met, Step) or not met.can_attend(self.plan.policy.reads_weights):
            return attend
        return partial(met.attend, attend)

    def _given_groups(
        self, layer: KeptSets, number: int, module: nn.Module, implementation: str | None, given: dict[str, Any]
    ) -> dict[str, Any]:
        """The function runs for the first group of heads; what the others give is made in `returned`."""
        groups = layer.groups or []
        if given["key"].stride(2) or not is_plain(module, given):
            raise _refuse(module, "its keys were changed between the cache and the attention function")
        of_each = given["query"].shape[1] // sum(len(group.heads) for group in groups)
        shares = [of_group(group, layer, implementation, given, of_each) for group in groups]
        calls = [self._call(layer, number, module, *both) for both in zip(shares, groups, strict=True)]
        self.met[module] = Met(layer, calls[0], True, given["query"], calls)
        return shares[0]

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        met = self.met.pop(module, None)
        if met is None:
            return output
        assert self.plan is not None
        if isinstance(met, Step):
            if self.plan.policy.reads_weights and not met.made:
                self._weigh(met)
        elif met.calls:
            output = self._after_groups(met, self.plan, output)
        else:
            self._after(met, self.plan, output)
        if self.progress.unfinished == 1:
            self._end(self.plan)
        self.progress.unfinished -= 1
        if not self.progress.unfinished:
            self.stop()
        return output

    @torch.no_grad()
    def _end(self, plan: Plan) -> None:
        """The last layer has attended."""
        for stack in self.progress.stacks:
            steps = [step for step in self.steps if step.part.mark is stack.mark]
            ids = None if self.forward is None else self.forward.ids
            call = call_of(stack, steps, len(self.layers), ids, plan.policy.reads_weights)
            _update_notes(stack, call, plan.policy.needs, stack)
            stack.close(plan.policy.score(call))
        if plan.policy.together and not self.progress.stacks:
            self.progress.stacks = stacked(self.ready)

    def _call(
        self, layer: KeptSets, number: int, module: nn.Module, given: Mapping[str, Any], group: Group | None = None
    ) -> EvictionCall:
        assert self.plan is not None
        assert self.forward is not None
        query, key, value = given["query"], given["key"], given["value"]
        slots = layer.slots if group is None else group.slots
        places = slots["places"]
        stored = places.shape
        if key.shape[2] != stored[2] or key.shape[1] % stored[1]:
            raise _refuse(module, f"attends to {key.shape[2]} keys where the cache stores {stored[2]}")
        mask, scaling, sink = given.get("attention_mask"), given.get("scaling"), given.get("s_aux")
        more = key.shape[1] // stored[1]
        return EvictionCall(
            query=query,
            key=key,
            value=value,
            places=places.repeat_interleave(more, 1) if more > 1 else places,
            total=layer.seen,
            scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            cache_heads=stored[1],
            module=module,
            layer=number,
            layers=len(self.layers),
            pads=layer.pads,
            mask=mask if isinstance(mask, Tensor) else None,
            softcap=given.get("softcap"),
            sink=sink,
            ids=self.forward.ids,
            rotation=self.plan.rotations.get(number),
            budget=self._budget(layer, number, query),
            notes=layer.notes_of(slots),
        )

    def _budget(self, layer: KeptSets, number: int, query: Tensor) -> Tensor:
        """Keys that a head may keep on average: for a token that follows, what was decided on the pass before."""
        assert self.plan is not None
        if query.shape[2] == 1 and layer.count is not None:
            return layer.count
        tokens = torch.full(query.shape[:1], layer.seen, device=query.device)
        tokens = tokens if layer.pads is None else tokens - layer.pads.to(query.device)
        return self.plan.budget.of_layer(number, len(self.layers), tokens)

    @torch.no_grad()
    def _weigh(self, step: Step) -> None:
        """The weights of a token on a layer of a stack, where its attention did not leave them there."""
        step.part.weights.copy_(self._call(step.layer, step.number, step.module, step.given).weights())

    @torch.no_grad()
    def _after(self, met: Met, plan: Plan, output: Tensor) -> None:
        """Take notes of a call that ran, score, and evict."""
        policy, layer, call = plan.policy, met.layer, met.call
        if policy.reads_weights and call.layer not in self.checked:
            _check_weights(call, output)
            self.checked.add(call.layer)
        several = call.queries > 1 or layer.limits is None
        _update_notes(layer.slots, call, policy.needs if several else plan.lasting, layer)
        if call.layer < policy.skipped:
            policy.score(call)
        elif several:
            scores = _pooled(policy.score(call), call.cache_heads)
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
        if several:
            layer.forget([note for note in policy.needs if note not in plan.lasting])
            if plan.when == "prefill" and met.plain and layer.gaps and policy.rounding is None:
                layer.regroup()
        if policy.rounding is not None:
            if call.cache_heads != call.key.shape[1]:
                raise UnsupportedModelError(
                    f"family '{family(call.module)}' caches a latent, not the keys and values that "
                    f"{type(policy).__name__} rounds: leave its rounding out"
                )
            layer.round_new(policy.rounding, call.total - call.queries)

    @torch.no_grad()
    def _after_groups(self, met: Met, plan: Plan, output: Tensor) -> Tensor:
        """One token on two rectangles: the other group's output, and notes of both."""
        assert met.query is not None
        assert met.layer.groups is not None
        least = 0 if met.layer.pads is None else met.layer.pads[:, None, None].to(output.device)
        of_keys = [note for note in plan.lasting if isinstance(note, KeyNote)]
        joined = output.new_empty(*output.shape[:2], met.query.shape[1], output.shape[3])
        for number, (group, call) in enumerate(zip(met.layer.groups, met.calls, strict=True)):
            made = output if not number else grouped_attention(group, call.query, least, call.scaling).transpose(1, 2)
            joined[:, :, query_heads(group, call.group)] = made
            _update_notes(group.slots, call, of_keys, met.layer)
        whole = replace(met.call, query=met.query.detach())
        of_samples = [note for note in plan.lasting if isinstance(note, RowNote)]
        _update_notes(met.layer.groups[0].slots, whole, of_samples, met.layer)
        return joined


def _may_group(module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> bool:
    """Whether heads may be taken apart at later calls like this one."""
    return implementation in (None, "eager", "sdpa") and is_plain(module, arguments)


def _attends_to(layer: KeptSets, given: Mapping[str, Any]) -> bool:
    """Whether a call attends to what the layer stores and to nothing else."""
    slots, part = layer.slots, layer.part
    if part is not None and given["key"] is part.keys and given["value"] is part.values:
        return True
    stored = (slots["keys"], slots["values"]) if part is None else (part.keys, part.values)
    both = zip((given["key"], given["value"]), stored, strict=True)
    return all(a.shape == b.shape and a.stride() == b.stride() and a.data_ptr() == b.data_ptr() for a, b in both)


def _update_notes(slots: Slots | Stack, call: EvictionCall, notes: Sequence[Note], owner: KeptSets | Stack) -> None:
    """Add this pass to the notes: of keys in `slots`, of samples in `owner`. A note may read those before it."""
    for note in notes:
        if isinstance(note, KeyNote):
            slots.note(note, note.of_new(call))
            note.add(call, slots[note])
        else:
            owner.keep_samples(note, note.after(call, owner.samples.get(note)))


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
