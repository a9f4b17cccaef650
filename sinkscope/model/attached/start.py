"""How an operation starts on a model that was trained without it: by changing nothing, where it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
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
    ScaledSoftmax,
    Softmax,
    Softpick,
    ValueBias,
    ValueGate,
)
from sinkscope.attention.masks import describe

CLOSED = -30.0
"""Logit of a closed slot, in nats: e^-30 = 1e-13 of the mass beside scores that sum to 1. It is also the factor on the
slot's gradient, so a closed slot opens slowly; `start="as_is"` starts it where its own definition does."""


def unchanged(spec: AttentionSpec) -> AttentionSpec:
    """`spec` with starting values under which it changes as little as it can.

    Slots with a logit start closed (b = -30; a learned key gets a logit for that), value biases at zero, gates open
    (relative to their openness, with weights of zero). What has nothing to start differently stays as it is; `changes`
    names it. Under normalizers for which a very negative logit is no empty slot, slots stay as they are.
    """
    closes = not isinstance(spec.normalizer, Linear | Softpick)
    return replace(
        spec,
        slots=tuple(_neutral(slot) or slot for slot in spec.slots) if closes else spec.slots,
        output=tuple(_neutral(piece) or piece for piece in spec.output),
        value_gate=None if spec.value_gate is None else _neutral(spec.value_gate),
    )


def changes(spec: AttentionSpec) -> tuple[str, ...]:
    """The pieces of an operation that change a softmax model from the start, in words; none where it starts equal."""
    found = [piece.kind for piece in _pieces(spec) if _neutral(piece) != piece]
    return tuple(found) if spec.mask == Causal() else (*found, f"mask {describe(spec.mask)}")


def _pieces(spec: AttentionSpec) -> Iterator[Any]:
    optional = (spec.query_key, spec.temperature, spec.decay, spec.value_gate, spec.difference)
    yield from (spec.similarity, spec.normalizer, *spec.slots, *spec.output)
    yield from (piece for piece in optional if piece is not None)


def _neutral(piece: Any) -> Any:
    """The piece started so that it changes nothing; None where it cannot."""
    start = _NEUTRAL.get(type(piece))
    return None if start is None else start(piece)


def _opened(gate: Any) -> Any:
    return replace(gate, relative=True, initial_std=0.0)


_NEUTRAL: dict[type, Callable[[Any], Any]] = {
    DotProduct: lambda piece: piece,
    Softmax: lambda piece: piece,
    ScaledSoftmax: lambda piece: piece if piece.alpha == 1 else None,
    PowerSoftmax: lambda piece: piece if piece.p == 1 else None,
    ClippedSoftmax: lambda piece: piece if (piece.gamma, piece.zeta, piece.alpha) == (0, 1, None) else None,
    LogitSlot: lambda piece: replace(piece, initial=min(piece.initial, CLOSED)),
    KeySlot: lambda piece: replace(piece, initial_logit=min(piece.initial_logit or 0.0, CLOSED)),
    ValueBias: lambda piece: replace(piece, initial_std=0.0),
    HeadGate: _opened,
    ElementGate: _opened,
    ValueGate: _opened,
}
