"""Choices of tokens inside a cache: which stored keys of a pass are chosen.

`sinkscope.sinks` defines the choices; a cache adds what only it can see, the attention received so far (`Online`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Heads, KeyNote, Marked, Note
from sinkscope.errors import InputError
from sinkscope.sinks import Choice, First, Last, Measured, Online, Positions, Sum, TokenIds, Tokens, chosen


@dataclass(frozen=True)
class ReceivedByHead(KeyNote):
    """For each query head of the group, Σ_t A[t, k] so far; and Σ_t 1 / (keys that t saw), the same for uniform
    attention.

    (batch, kv_heads, key, group + 1), fp32, over the queries that saw the key.
    """

    reads_weights = True

    def bytes_each(self, heads: Heads) -> int:
        return 4 * (heads.query // heads.kv + 1)

    def of_new(self, call: EvictionCall) -> Tensor:
        return torch.zeros(*call.key.shape[:2], call.queries, call.group + 1, device=call.key.device)

    def add(self, call: EvictionCall, stored: Float[Tensor, "batch kv_heads key group_and_1"]) -> None:
        first = call.total - call.queries
        for rows in call.row_parts():
            columns = torch.arange(first, call.total, device=stored.device)[rows]
            seen = (call.places[:, :, None] <= columns[:, None]) & call.real[:, :, None]
            uniform = (seen / seen.sum(-1, keepdim=True).clamp(min=1)).sum(2)
            # (batch, kv_heads, group + 1, key), transposed to (…, key, group + 1).
            stored += torch.cat([call.weights(rows).sum(3), uniform[:, :, None]], 2).mT


def checked(choice: Choice | Tokens | None) -> Choice | Tokens | None:
    """The choice as a cache uses it; one by measurement is resolved.

    Raises `InputError` for a choice that requires whole texts.
    """
    if choice is None or isinstance(choice, Tokens | Online | Last):
        return choice
    if isinstance(choice, Measured) and choice.measurement is not None:
        tokens: Tokens = choice.measurement.sinks(epsilon=choice.epsilon, by="position")
        return tokens
    if not isinstance(choice, Choice):
        raise InputError(f"protect: expected a choice of tokens, such as First(4), or Tokens, not {choice!r}")
    if isinstance(choice, Sum):
        for part in choice.parts:
            checked(part)
    elif not choice.in_a_pass:
        raise InputError(
            f"protect = {choice}: a cache cannot tell these tokens while it reads; give the tokens that "
            "find_tokens(model, texts, choice) finds, or online"
        )
    return choice


def parts_of(choice: Choice | Tokens | None) -> tuple[Choice | Tokens, ...]:
    """The choices that a sum consists of."""
    if isinstance(choice, Sum):
        return tuple(part for each in choice.parts if (part := checked(each)) is not None)
    return () if choice is None else (choice,)


def notes_of(part: Choice | Tokens) -> tuple[Note, ...]:
    """The notes that a choice needs."""
    if isinstance(part, TokenIds):
        return (Marked(part.ids),)
    return (ReceivedByHead(),) if isinstance(part, Online) else ()


def most_of(part: Choice | Tokens) -> int:
    """How many keys of a head a choice can hold at most; 0 if that depends on the text."""
    if isinstance(part, First | Last):
        return part.n
    if isinstance(part, Positions):
        return len(part.positions)
    return int(part.mask.sum(-1).max(initial=0)) if isinstance(part, Tokens) else 0


def among(part: Choice | Tokens, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
    """Which stored keys are chosen."""
    if isinstance(part, Tokens):
        return _of_tokens(part, call)
    if isinstance(part, Last):
        return call.places >= call.total - part.n
    if isinstance(part, TokenIds):
        return call.notes[Marked(part.ids)] > 0
    if isinstance(part, Online):
        sums, seen = call.notes[ReceivedByHead()], (call.total - call.places).clamp(min=1)
        sinks = chosen(
            sums[..., :-1].amax(-1) / seen, seen, sums[..., -1] / seen, call.tokens[:, None, None], part.epsilon
        )
        return sinks & call.real
    return part.places(call.positions, None, call.real)


def _of_tokens(tokens: Tokens, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
    heads, rows = tokens.mask.shape[2], len(tokens.mask)
    if heads not in (1, call.query.shape[1], call.key.shape[1]):
        raise InputError(f"tokens for {heads} heads, but the layer has {call.query.shape[1]}: another model's")
    if tokens.rows is not None and rows != len(call.places):
        raise InputError(
            f"tokens were chosen in {rows} texts, but the batch has {len(call.places)} rows: give the same texts"
        )
    group = call.group if heads == call.query.shape[1] else 1
    index = getattr(call.module, "layer_idx", call.layer)
    mask = torch.from_numpy(np.ascontiguousarray(tokens.kv(group).layer(index))).to(call.places.device)
    mask = mask.expand(len(call.places), call.key.shape[1], -1)
    inside = call.real & (call.positions < mask.shape[2])
    return mask.gather(2, torch.where(inside, call.positions, 0)) & inside


class SinkSet:
    """Deprecated names of choices, for one release: see `sinkscope.sinks`."""

    @staticmethod
    def of(measurement: Any, epsilon: float = 0.3) -> Measured:
        """`Measured(epsilon, measurement=measurement)`."""
        return _renamed("of(measurement)", Measured(epsilon, measurement=measurement), "Measured(measurement=…)")

    @staticmethod
    def online(epsilon: float = 0.3) -> Online:
        """`Online(epsilon)`."""
        return _renamed("online(epsilon)", Online(epsilon), "Online(epsilon)")

    @staticmethod
    def tokens(ids: Iterable[int]) -> TokenIds:
        """`TokenIds(*ids)`."""
        return _renamed("tokens(ids)", TokenIds(*ids), "TokenIds(*ids)")

    @staticmethod
    def first(n: int = 4) -> First | None:
        """`First(n)`, or None for 0."""
        return _renamed("first(n)", First(n) if n else None, "First(n)")


def _renamed(old: str, choice: Any, new: str) -> Any:
    warnings.warn(f"SinkSet.{old} is now sinkscope.sinks.{new}", DeprecationWarning, stacklevel=3)
    return choice
