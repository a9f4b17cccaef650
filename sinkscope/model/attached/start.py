"""Starting values of an operation on a model trained without it: change as little as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from sinkscope.attention import (
    AttentionSpec,
    Causal,
    ClippedSoftmax,
    DotProduct,
    ElementGate,
    Entmax,
    HeadGate,
    KeySlot,
    Linear,
    LogitSlot,
    Operation,
    OwnValueGate,
    PowerSoftmax,
    Relu,
    ScaledSoftmax,
    Softmax,
    Softpick,
    ValueBias,
    ValueGate,
    ValueGradient,
    ValueStateGate,
    is_registered,
)
from sinkscope.attention.masks import describe

CLOSED = -8.0
"""Logit of a slot that starts closed, in nats, and how far below a query's tokens it starts at least. A query whose
scores have log-sum-exp L gives the slot σ(b − L) of its mass: 3e-4 where L is 0, less where L is larger, as in long
rows. That share is also the factor on the slot's gradient, so b is no lower than it must be: the smallest gradients
that AdamW still tells from its ε = 1e-8 are about as much. Where L is negative b starts lower (`closing`)."""
ROWS = 256  # queries whose scores are in memory at once


def unchanged(spec: AttentionSpec, keep_slots: bool = False) -> AttentionSpec:
    """`spec` with starting values under which it changes as little as it can and still learns.

    Slots with a logit start closed (b = -8, or lower by `closing`; a learned key gets a logit for that), value biases
    at zero, gates open (relative to their openness, with weights of zero). A starting value other than the piece's
    default is explicit and kept, as every slot's is if `keep_slots`. Pieces without such values stay unchanged;
    `changes` names them. Under normalizers for which a very negative logit is no empty slot, or one without a gradient,
    slots stay as they are.
    """
    closes = not keep_slots and _learns_while_closed(spec.normalizer)
    return replace(
        spec,
        slots=tuple(_started(slot) for slot in spec.slots) if closes else spec.slots,
        output=tuple(_started(piece) for piece in spec.output),
        value_gate=None if spec.value_gate is None else _started(spec.value_gate),
    )


@contextmanager
def closing(model: nn.Module, started: AttentionSpec, asked: AttentionSpec) -> Iterator[None]:
    """Close the slots of each head as far as its queries need it, in the pass that is made inside.

    Log-sum-exps of real models can be far below zero, and b = -8 would leave a slot open to such queries. Before an
    operation attends,

        b_h ← min(−8, min_t (L_ht − x_ht) − 8),

    with L the log-sum-exp of a query's scores on tokens, and x what the slot adds to b (scaling · q·k*, zero for a
    plain logit). So no query of the pass gives a slot more than σ(−8) of its mass, and later layers see what closed
    slots leave. Only slots that `started` closed: those whose starting value differs from `asked` for.
    """
    closed = {place for place, (a, b) in enumerate(zip(started.slots, asked.slots, strict=True)) if a != b}
    hooks = []
    for operation in model.modules() if closed and started.normalizer.couples_keys else ():
        if isinstance(operation, Operation) and operation.spec.slots[: len(started.slots)] == started.slots:
            hooks.append(operation.register_forward_pre_hook(partial(_close, closed), with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _close(closed: set[int], operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Lower the logits of the slots at `closed` until no query of this call gives them more than σ(−8)."""
    query, key, _, visibility, hidden, scaling, *_ = args
    context = operation.context(query, key, visibility, hidden, scaling, bias=kwargs.get("bias"))
    ends = list(accumulate(getattr(slot, "count", 1) for slot in operation.slot_modules))
    for start in range(0, query.shape[2], ROWS):
        rows = slice(start, min(start + ROWS, query.shape[2]))
        # (batch, heads, rows, 1), over tokens alone: `logits` leaves the slots out.
        lse = operation.logits(query, key, context, rows)[0].logsumexp(-1, keepdim=True)
        # (batch, heads, rows, slots). Read anew in each chunk, so that chunks together lower a logit to the least of
        # their bounds instead of adding up.
        gaps = operation.slot_logits(query, context)[:, :, rows] - lse
        # (heads, slots). Rows that see no token (padding) have no log-sum-exp and say nothing; no logit is ever raised.
        excess = (gaps.masked_fill(lse == -torch.inf, -torch.inf).amax((0, 2)) - CLOSED).clamp(min=0)
        for place, end in enumerate(ends):
            if place in closed:
                logit = operation.slot_modules[place].logit
                assert isinstance(logit, torch.Tensor)
                # A slot with a logit is one column of `slot_logits`, the last one before `end`.
                logit.data -= excess[:, end - 1].to(logit)


def changes(spec: AttentionSpec) -> tuple[str, ...]:
    """The pieces of an operation that change a softmax model from the start, in words; none where it starts equal."""
    kinds = [piece.kind for piece in _pieces(spec) if _neutral(piece) != piece]
    return tuple(kinds) if spec.mask == Causal() else (*kinds, f"mask {describe(spec.mask)}")


def _pieces(spec: AttentionSpec) -> Iterator[Any]:
    optional = (spec.query_key, spec.temperature, spec.decay, spec.value_gate, spec.difference)
    yield from (spec.similarity, spec.normalizer, *spec.slots, *spec.output)
    yield from (piece for piece in optional if piece is not None)


def _learns_while_closed(normalizer: Any) -> bool:
    """Whether a slot of a very negative logit takes next to nothing, and still has a gradient."""
    if isinstance(normalizer, ClippedSoftmax):  # what it clips to zero has none
        return (normalizer.gamma, normalizer.alpha) == (0, None)
    if is_registered(normalizer):  # unknown
        return False
    if isinstance(normalizer, Entmax):
        return bool(normalizer.alpha == 1)
    return not isinstance(normalizer, Linear | Softpick | Relu)


def _started(piece: Any) -> Any:
    """The piece with neutral starting values, except explicit ones."""
    neutral = _neutral(piece)
    if neutral is None:
        return piece
    usual = {field.name: field.default for field in fields(piece)}
    gave = {name: getattr(piece, name) for name in STARTING if getattr(piece, name, None) != usual.get(name)}
    return replace(neutral, **gave)


def _neutral(piece: Any) -> Any:
    """The piece with starting values that change almost nothing; None if impossible."""
    start = _NEUTRAL.get(type(piece))
    return None if start is None else start(piece)


def _opened(gate: Any) -> Any:
    return replace(gate, relative=True, initial_std=0.0)


def _closed(logit: float | None) -> float:
    return CLOSED if logit is None else min(logit, CLOSED)


STARTING = ("initial", "initial_logit", "initial_std")  # fields of pieces that are starting values

_NEUTRAL: dict[type, Callable[[Any], Any]] = {
    DotProduct: lambda piece: piece,
    Softmax: lambda piece: piece,
    ScaledSoftmax: lambda piece: piece if piece.alpha == 1 else None,
    PowerSoftmax: lambda piece: piece if piece.p == 1 else None,
    ClippedSoftmax: lambda piece: piece if (piece.gamma, piece.zeta, piece.alpha) == (0, 1, None) else None,
    LogitSlot: lambda piece: replace(piece, initial=_closed(piece.initial)),
    KeySlot: lambda piece: replace(piece, initial_logit=_closed(piece.initial_logit)),
    ValueBias: lambda piece: replace(piece, initial_std=0.0),
    HeadGate: _opened,
    ElementGate: _opened,
    ValueGate: _opened,
    ValueStateGate: _opened,
    OwnValueGate: _opened,
    ValueGradient: lambda piece: piece,
    Entmax: lambda piece: piece if piece.alpha == 1 else None,
}
