"""Q-Hitter: keep the heavy hitters that survive rounding (Zhang et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Heads, KeyNote, Received
from sinkscope.caches.policies.policy import Policy
from sinkscope.errors import InputError
from sinkscope.grids import rounded_rows


@dataclass(frozen=True)
class RoundingErrors(KeyNote):
    """‖x̂ − x‖₂ of each stored key and of its value, (…, 2), fp32: the errors that rounding would cause."""

    bits: int

    def bytes_each(self, heads: Heads) -> int:
        return 8

    def of_new(self, call: EvictionCall) -> Tensor:
        both = (call.of_new(call.key), call.of_new(call.value))
        return torch.stack([rounding_error(x.float(), self.bits) for x in both], -1)


@dataclass(frozen=True)
class QHitter(Policy):
    """Heavy hitters that survive rounding: score = λ · hits + (1 − λ) · q, both between 0 and 1.

    hits: Σ_t A[t, k], scaled to 0…1 within its layer and row. q = 1 − (e_K + e_V) / 2, where e is the error of the key
    and of the value on a per-token grid of `bits` bits with an integer zero point, scaled likewise. λ is `attention`.
    Within the budget, the share `recent` goes to the newest tokens and the share `first` to the heaviest hitters; the
    score selects the rest.

    Source: Zhang et al. 2024. Their code keeps .05, .07 and .08 of the prompt, which is .25, .35 and .40 of the budget.
    It scales the error of a decoded token over the heads of that token alone, so that one head always scores best; here
    it is scaled over all stored keys. It also rounds what it keeps. `rounds=True` does the same: each token is rounded
    once, on its own grid, after the pass that brought it (held as rounded numbers, not packed). Without it, kept tokens
    stay in full precision.
    """

    attention: float = 0.5
    bits: int = 4
    recent: float = 0.25
    first: float = 0.35
    rounds: bool = False

    def __post_init__(self) -> None:
        for name in ("attention", "recent", "first"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"QHitter: {name} is {getattr(self, name)!r}, expected a share, from 0 to 1")
        if self.recent + self.first >= 1:
            raise InputError(
                f"QHitter: recent {self.recent} and first {self.first} leave nothing of a budget to choose"
            )
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 1 <= self.bits <= 8:
            raise InputError(f"QHitter: bits is {self.bits!r}, expected a whole number from 1 to 8")

    @property
    def rounding(self) -> Callable[[Tensor], Tensor] | None:
        return partial(rounded_rows, bits=self.bits) if self.rounds else None

    @property
    def needs(self) -> tuple[KeyNote, ...]:
        return (Received(), RoundingErrors(self.bits))

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        real, received = call.real, call.notes[Received()]
        errors = call.notes[RoundingErrors(self.bits)]
        error = torch.stack([_scaled(errors[..., side], real) for side in (0, 1)], -1).mean(-1)
        score = self.attention * _scaled(received, real) + (1 - self.attention) * (1 - error)
        newest = call.places >= call.total - (call.budget * self.recent).long()[:, None, None]
        heaviest = _largest(
            received.masked_fill(~real | newest, -torch.inf), call.places, (call.budget * self.first).long()
        )
        # Scores are at most 1, so the heaviest hitters rank above all others.
        return (score + heaviest * 2).masked_fill(newest, torch.inf)


def rounding_error(x: Float[Tensor, "*rows dim"], bits: int) -> Float[Tensor, "*rows"]:
    """‖x̂ − x‖₂ of each row, with x̂ from `rounded_rows`."""
    return (rounded_rows(x, bits) - x).norm(dim=-1)


def _scaled(x: Tensor, real: Bool[Tensor, "batch kv_heads key"]) -> Float[Tensor, "batch kv_heads key"]:
    """x scaled to 0…1 over the stored keys of each row; 0 if all are equal."""
    low = x.masked_fill(~real, torch.inf).amin((1, 2), keepdim=True)
    high = x.masked_fill(~real, -torch.inf).amax((1, 2), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low), 0.0)


def _largest(
    x: Float[Tensor, "batch kv_heads key"], places: Int[Tensor, "batch kv_heads key"], count: Int[Tensor, " batch"]
) -> Bool[Tensor, "batch kv_heads key"]:
    """The `count` largest of each head; the newest among equals."""
    # Decoded tokens replace keys in place, so slots are not in the order of places.
    by_place = places.argsort(dim=-1)
    rank = by_place.gather(-1, x.gather(-1, by_place).argsort(dim=-1, stable=True)).argsort(dim=-1)
    return (rank >= x.shape[-1] - count[:, None, None]) & (x > -torch.inf)
