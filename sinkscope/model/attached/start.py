"""How an operation starts on a model that was trained without it: by changing nothing, where it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from sinkscope.attention import (
    AttentionSpec,
    Causal,
    ClippedSoftmax,
    DotProduct,
    ElementGate,
    HeadGate,
    KeySlot,
    Linear,
    LogitSlot,
    PowerSoftmax,
    Relu,
    ScaledSoftmax,
    Softmax,
    Softpick,
    ValueBias,
    ValueGate,
    is_registered,
)
from sinkscope.attention.masks import describe

CLOSED = -8.0
"""Logit of a slot that starts closed, in nats. A query whose scores have log-sum-exp L gives it σ(b − L) of its mass:
3e-4 where L is 0, less where L is larger, as in long rows. That share is also the factor on the slot's gradient, so b
is no lower: the smallest gradients that AdamW still tells from its ε = 1e-8 are about as much."""


def unchanged(spec: AttentionSpec, given: bool = False) -> AttentionSpec:
    """`spec` with starting values under which it changes as little as it can and still learns.

    Slots with a logit start closed (b = -8; a learned key gets a logit for that), value biases at zero, gates open
    (relative to their openness, with weights of zero). A starting value other than the piece's default is what somebody
    gave: it stays, as every slot's does where `given`. What has nothing to start differently stays as it is; `changes`
    names it. Under normalizers for which a very negative logit is no empty slot, or one without a gradient, slots stay
    as they are.
    """
    closes = not given and _learns_while_closed(spec.normalizer)
    return replace(
        spec,
        slots=tuple(_started(slot) for slot in spec.slots) if closes else spec.slots,
        output=tuple(_started(piece) for piece in spec.output),
        value_gate=None if spec.value_gate is None else _started(spec.value_gate),
    )


def changes(spec: AttentionSpec) -> tuple[str, ...]:
    """The pieces of an operation that change a softmax model from the start, in words; none where it starts equal."""
    found = [piece.kind for piece in _pieces(spec) if _neutral(piece) != piece]
    return tuple(found) if spec.mask == Causal() else (*found, f"mask {describe(spec.mask)}")


def _pieces(spec: AttentionSpec) -> Iterator[Any]:
    optional = (spec.query_key, spec.temperature, spec.decay, spec.value_gate, spec.difference)
    yield from (spec.similarity, spec.normalizer, *spec.slots, *spec.output)
    yield from (piece for piece in optional if piece is not None)


def _learns_while_closed(normalizer: Any) -> bool:
    """Whether a slot of a very negative logit takes next to nothing, and still has a gradient."""
    if isinstance(normalizer, ClippedSoftmax):  # what it clips to zero has none
        return (normalizer.gamma, normalizer.alpha) == (0, None)
    if is_registered(normalizer):  # nobody knows
        return False
    return not isinstance(normalizer, Linear | Softpick | Relu)


def _started(piece: Any) -> Any:
    """The piece as it starts: neutral, but with the starting values that somebody gave."""
    neutral = _neutral(piece)
    if neutral is None:
        return piece
    usual = {field.name: field.default for field in fields(piece)}
    gave = {name: getattr(piece, name) for name in STARTING if getattr(piece, name, None) != usual.get(name)}
    return replace(neutral, **gave)


def _neutral(piece: Any) -> Any:
    """The piece started so that it changes next to nothing; None where it cannot."""
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
}
