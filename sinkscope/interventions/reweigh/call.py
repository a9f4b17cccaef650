"""One attention call: the weight on chosen keys, and the output for other values, without T × T maps.

Attention is linear in its values: o = A v. So the layer's own function, run once more with marks instead of values,
gives the weight on marked keys, A 1_S, with whatever masks, windows, softcaps and learned sinks it has, and gradients
flow where the function has them. If the CPU's flash kernel ran without gradients, its log-sum-exp L gives the weights
of a few keys at no cost: a_k = exp(scaling · q·k − L).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope.attention import Softmax, TokenAxis, Visibility, operation_of
from sinkscope.attention.scores import wide
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Invocation, OpenStream, family, hosted

BESIDE = ("softcap", "s_aux", "sinks", "position_bias")  # arguments that a log-sum-exp includes besides products
SINKS = ("s_aux", "sinks")  # arguments that are learned logits of no token
AGREES = 1e-4  # allowed difference between the two readings of a weight, besides rounding

Columns = Int[Tensor, "batch n"]
Chosen = Bool[Tensor, "batch *heads key"]


@dataclass(frozen=True, eq=False)
class Call:
    """An attention call with the tokens of its queries and keys.

    `trusted`: layers whose log-sum-exp was compared with the function itself; shared by all calls of a context.
    """

    opened: OpenStream
    run: Invocation
    trusted: dict[nn.Module, bool] = field(default_factory=dict)

    @property
    def module(self) -> nn.Module:
        return self.run.module

    @property
    def query(self) -> Float[Tensor, "batch heads query dim"]:
        return self.run.arguments["query"]

    @property
    def key(self) -> Float[Tensor, "batch kv_heads key dim"]:
        return self.run.arguments["key"]

    @property
    def value(self) -> Float[Tensor, "batch kv_heads key value_dim"]:
        return self.run.arguments["value"]

    @property
    def output(self) -> Float[Tensor, "batch heads query value_dim"]:
        """The output of the function, in fp32 at least."""
        return wide(self.run.output.transpose(1, 2))

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def asking(self) -> TokenAxis:
        """The tokens of the queries."""
        start = self.opened.seen
        return self.opened.tokens(start, start + self.query.shape[2], self.query.device)

    @cached_property
    def tokens(self) -> TokenAxis:
        """The tokens of the keys; a sliding cache only holds the last ones."""
        total, keys = self.opened.seen + self.query.shape[2], self.key.shape[2]
        first = max(0, total - keys)
        return self.opened.tokens(first, first + keys, self.key.device)

    @property
    def starts(self) -> bool:
        """Whether this pass begins its rows: the cache is empty."""
        return self.opened.seen == 0

    def at(self, positions: tuple[int, ...]) -> Bool[Tensor, "batch key"]:
        """Which keys are at these positions, counted in real tokens."""
        tokens = self.tokens
        mask = torch.isin(tokens.order, tokens.order.new_tensor(positions))
        return (mask if tokens.valid is None else mask & tokens.valid).expand(len(self.query), -1)

    @property
    def causal(self) -> bool:
        """Whether the layer declares to be causal."""
        argument = self.run.arguments.get("is_causal")
        return bool(getattr(self.module, "is_causal", True) if argument is None else argument)

    def through(self, values: Float[Tensor, "batch kv_heads key value_dim"]) -> Float[Tensor, "batch heads query _"]:
        """A v for other values, in fp32 at least, without the values of slots."""
        return self._through(values) - self.constant if self.has_slot_values else self._through(values)

    @cached_property
    def constant(self) -> Float[Tensor, "batch heads query value_dim"]:
        """What the values of slots add to the output, independent of the tokens' values."""
        return self._through(torch.zeros_like(self.value))

    def _through(self, values: Tensor) -> Tensor:
        return wide(self.run.again(value=values.to(self.value.dtype)).transpose(1, 2))

    def masses(self, *sets: Chosen) -> tuple[Float[Tensor, "batch heads query"], ...]:
        """Σ_{k in a set} A[t, k] for each set, by the function itself: small masses keep their relative precision."""

        def marked(masks: tuple[Tensor, ...]) -> Tensor:
            # Set s is marked in channel s, so one run gives A 1_S for all of them.
            marks = torch.zeros_like(self.value)
            for channel, chosen in enumerate(masks):
                marks[..., channel] = chosen.to(marks.dtype)
            return marks

        masses = self._of_sets(sets, marked)
        return tuple(masses[..., channel] for channel in range(len(sets)))

    def part(self, chosen: Chosen) -> Float[Tensor, "batch heads query value_dim"]:
        """Σ_{k in the set} A[t, k] v_k, by the function itself."""
        return self._of_sets((chosen,), lambda masks: self.value.masked_fill(~masks[0][..., None], 0.0))

    def _of_sets(self, sets: tuple[Chosen, ...], values: Callable[[tuple[Tensor, ...]], Tensor]) -> Tensor:
        """A v with values made for sets of keys, (batch, key), or (batch, heads, key) if each query head has its own.

        The latter takes one run per member of a group, since the heads of a group share their values.
        """
        if all(chosen.ndim == 2 for chosen in sets):
            return self.through(values(tuple(chosen[:, None] for chosen in sets)))
        # (batch, heads, key) → (batch, kv_heads, group, key). Run g marks the values of each group by the set of its
        # member g, and is right for these heads alone.
        by_member = [chosen.unflatten(1, (-1, self.group)) for chosen in sets]
        runs = (self.through(values(tuple(chosen[:, :, g] for chosen in by_member))) for g in range(self.group))
        members = [run.unflatten(1, (-1, self.group))[:, :, g] for g, run in enumerate(runs)]
        # (batch, kv_heads, group, query, value_dim) → (batch, heads, query, value_dim)
        return torch.stack(members, 2).flatten(1, 2)

    def received(self) -> Float[Tensor, "batch heads key"]:
        """Σ_t A[t, k] over the real queries of this pass: the derivative of Σ_t (A v)_t, since A v is linear in v."""
        with torch.inference_mode(False), torch.enable_grad():
            arguments = {name: _outside_inference(value) for name, value in self.run.arguments.items()}
            # The derivative of a linear function is the same at any value, and in every channel: channel 0 suffices.
            value = torch.zeros_like(arguments["value"]).requires_grad_()
            arguments |= {"query": arguments["query"].detach(), "key": arguments["key"].detach(), "value": value}
            # (batch, query, heads) → (batch, query, kv_heads, group)
            output = self.run.again(**arguments)[..., 0].unflatten(-1, (-1, self.group))
            # Padding asks nothing. One gradient per member of a group: they share values, so one would be their sum.
            real = self.asking.valid
            rows = output if real is None else output * real[..., None, None].to(output.dtype)
            members = [
                torch.autograd.grad(rows[..., member].sum(), value, retain_graph=member + 1 < self.group)[0][..., 0]
                for member in range(self.group)
            ]
        return wide(torch.stack(members, 2).flatten(1, 2))

    def weights(self, columns: Columns) -> Float[Tensor, "batch heads query n"]:
        """A[t, k] for a few keys k of each row, in fp32 at least."""
        fast = self._by_lse(columns)
        if fast is None:
            return self._by_marks(columns)
        if self.module not in self.trusted:
            slow = self._by_marks(columns)
            # The function rounds its output to the dtype of the values.
            bound = AGREES + 4 * torch.finfo(self.value.dtype).eps * slow
            self.trusted[self.module] = bool(((slow - fast).abs() <= bound).all())
            return slow
        return fast if self.trusted[self.module] else self._by_marks(columns)

    def _by_marks(self, columns: Columns) -> Float[Tensor, "batch heads query n"]:
        """The same by the function itself on marks: as many runs as keys divided by the width of a value."""
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        parts = []
        for some in columns.split(self.value.shape[-1], 1):
            marks = torch.zeros_like(self.value)
            # Key n is marked in channel n of its value: one run reads as many keys as a value has channels.
            marks[rows, :, some, torch.arange(some.shape[1], device=some.device)] = 1
            parts.append(self.through(marks)[..., : some.shape[1]])
        return torch.cat(parts, -1)

    @property
    def has_slots(self) -> bool:
        """Whether weight may be on something other than tokens."""
        operation = operation_of(self.module)
        return any(self.run.arguments.get(name) is not None for name in SINKS) or bool(operation and operation.slots)

    @property
    def has_slot_values(self) -> bool:
        operation = operation_of(self.module)
        return operation is not None and any(slot.has_value for slot in operation.spec.slots)

    @property
    def differentiated(self) -> bool:
        """Whether gradients of this call are required."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (self.query, self.key, self.value))

    def _by_lse(self, columns: Columns) -> Float[Tensor, "batch heads query n"] | None:
        """By the kernel's log-sum-exp; None if there is none, or if it may include more than scaled products."""
        # An attached layer's function uses other masks and biases than its host passed.
        arguments: dict[str, Any] = {**self.run.arguments, **hosted(self.module)}
        lse, operation = self.run.kernel_lse, operation_of(self.module)
        if lse is None or self.differentiated or lse.numel() != self.query.shape[:3].numel():
            return None
        if any(arguments.get(name) is not None for name in (*BESIDE, "bias")):
            return None
        if operation is not None and not (operation.spec.is_plain_softmax and not operation.slots):
            return None
        hidden = self._hidden(arguments.get("attention_mask"), columns)
        if hidden is None:
            return None
        scaling = self.query.shape[-1] ** -0.5 if arguments.get("scaling") is None else float(arguments["scaling"])
        return weights_on(self.query, keys_at(self.key, columns), lse.reshape(self.query.shape[:3]), scaling, hidden)

    def _hidden(self, mask: Any, columns: Columns) -> Bool[Tensor, "_ _ _ _"] | None:
        """Which queries do not see these keys; None for kinds of masks that are not read here."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        if isinstance(mask, Visibility):
            if not mask.is_causal_square:
                return None
            mask = None
        if mask is None and queries == 1:
            return torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=columns.device)
        if mask is None:
            if queries != keys or not self.causal:
                return None
            # (batch, 1, query, n): causal queries do not see later keys.
            return (columns[:, None] > torch.arange(queries, device=columns.device)[:, None])[:, None]
        # A mask of floats may also add a bias, which the products lack.
        if not isinstance(mask, Tensor) or mask.ndim != 4 or mask.shape[-1] < keys or mask.dtype != torch.bool:
            return None
        index = columns[:, None, None].expand(-1, mask.shape[1], mask.shape[2], -1)
        return ~mask.expand(len(columns), -1, -1, -1).gather(-1, index)


def weights_on(
    query: Float[Tensor, "batch heads query dim"],
    keys: Float[Tensor, "batch kv_heads n dim"],
    lse: Float[Tensor, "batch heads query"],
    scaling: float,
    hidden: Bool[Tensor, "_ _ _ _"],
) -> Float[Tensor, "batch heads query n"]:
    """a_k = exp(scaling · q·k − L), 0 where hidden.

    Differentiable as far as L is: that of a kernel is not, silently.

    Args:
        query: q.
        keys: Some keys k.
        lse: L, the log-sum-exp over all visible keys, nats.
        scaling: Factor of q·k.
        hidden: (batch or 1, heads or 1, query or 1, n or 1): which of these keys a query does not see.
    """
    batch, heads, queries, dim = query.shape
    # (batch, kv_heads, group · query, dim): all queries of a group meet its keys in one product.
    grouped = wide(query).reshape(batch, keys.shape[1], -1, dim)
    scores = (scaling * torch.matmul(grouped, wide(keys).mT)).view(batch, heads, queries, -1)
    # Filled after exp: a hidden key may score far above L, and a row that sees nothing has L = −inf.
    return (scores - lse[..., None]).exp().masked_fill(hidden, 0.0)


def keys_at(
    vectors: Float[Tensor, "batch kv_heads key dim"], columns: Columns
) -> Float[Tensor, "batch kv_heads n dim"]:
    """The keys or values in these columns of each row."""
    index = columns[:, None, :, None].expand(-1, vectors.shape[1], -1, vectors.shape[-1])
    return vectors.gather(2, index)


def columns_of(chosen: Bool[Tensor, "batch key"]) -> tuple[Columns, Bool[Tensor, "batch n"]]:
    """The columns of a set, padded to the largest number in any row; and which of them are in the set."""
    most = int(chosen.sum(-1).max())
    # Stable: chosen columns come first, in order. Shorter rows are filled with others, which the second result marks.
    columns = torch.argsort((~chosen).int(), dim=-1, stable=True)[:, :most]
    return columns, chosen.gather(-1, columns)


def _outside_inference(value: Any) -> Any:
    """A copy of a tensor made in inference mode, which has no derivatives."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def check_call(module: nn.Module, arguments: dict[str, Any], opened: OpenStream) -> None:
    """Raises `UnsupportedModelError` for a call whose weights cannot be computed here."""
    name = f"family '{family(module)}', {type(module).__name__}"
    operation = operation_of(module)
    if operation is not None:
        if not isinstance(operation.spec.normalizer, Softmax) or operation.spec.difference is not None:
            raise UnsupportedModelError(f"{name}: its weights are not a softmax, so they cannot be reweighed")
        if operation.spec.output:
            kinds = ", ".join(piece.kind for piece in operation.spec.output)
            raise UnsupportedModelError(
                f"{name}: '{kinds}' changes the output of its weights, so they cannot be computed from it"
            )
    if arguments.get("dropout"):
        raise UnsupportedModelError(f"{name}: attention dropout is on, so its weights are random: use model.eval()")
    cache = opened.passes.now.forward.cache
    if cache is not None and any(hasattr(layer, "places") for layer in cache.layers):
        raise UnsupportedModelError(f"{name}: the cache drops keys, so columns do not give positions")


LARGE = 1e-3  # a weight above this gives the weight on slots to full precision


def slot_mass(
    call: Call,
    chosen: Bool[Tensor, "batch key"],
    mass: Float[Tensor, "batch heads query"],
    remaining: Float[Tensor, "batch heads query"],
) -> Float[Tensor, "batch heads query"]:
    """The weight on slots, with `mass` on a set of keys and `remaining` on the other tokens.

    1 − m − r loses all digits where m is near 1. There, a key k of the set has a large weight a_k = exp(s_k − L), and
    slots with logit b have exp(b − L) = a_k exp(b − s_k). Raises `UnsupportedModelError` if scores are more than scaled
    products.
    """
    arguments: dict[str, Any] = {**call.run.arguments, **hosted(call.module)}
    logit = _slot_logit(call, arguments)
    columns, there = columns_of(chosen)
    weights = call.weights(columns) * there[:, None, None]
    largest = weights.max(-1)
    scaling = call.query.shape[-1] ** -0.5 if arguments.get("scaling") is None else float(arguments["scaling"])
    keys = keys_at(call.key, columns)
    grouped = wide(call.query).reshape(len(keys), keys.shape[1], -1, keys.shape[-1])
    scores = (scaling * torch.matmul(grouped, wide(keys).mT)).view(weights.shape)
    score = scores.gather(-1, largest.indices[..., None])[..., 0]
    # Slots have weight 1 at most, so exp(b − s_k) ≤ 1 / LARGE where it is used; elsewhere the clamp keeps it finite.
    by_score = largest.values * (logit - score).clamp(max=80.0).exp()
    return torch.where(largest.values > LARGE, by_score, (1 - mass - remaining).clamp(min=0))


def _slot_logit(call: Call, arguments: dict[str, Any]) -> Float[Tensor, "batch heads query"]:
    """log Σ exp of the logits of all slots."""
    operation, shape = operation_of(call.module), call.query.shape[:3]
    plain = all(arguments.get(name) is None for name in ("softcap", "position_bias", "bias"))
    if not plain or (operation is not None and not operation.spec.is_plain_softmax):
        raise UnsupportedModelError(
            f"family '{family(call.module)}', {type(call.module).__name__}: it has slots and scores that are more "
            "than scaled products, so the weight on slots without these tokens is imprecise: use gamma ≥ 0.125"
        )
    if operation is not None:
        names = ("attention_mask", "hidden_states", "scaling", "carried", "bias")
        context = operation.context(call.query, call.key, *(arguments.get(name) for name in names))
        return wide(torch.logsumexp(operation.slot_logits(call.query, context), -1)).expand(shape)
    sink = next(arguments[name] for name in SINKS if arguments.get(name) is not None)
    return wide(sink[None, :, None] if sink.ndim == 1 else sink[..., 0]).expand(shape)
