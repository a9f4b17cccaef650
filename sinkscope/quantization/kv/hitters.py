"""Q-Hitter: of the keys that are looked at, those stay that can be rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.caches import EvictionCall, KeyNote, Policy, Received
from sinkscope.errors import InputError

SMALLEST = 1e-5  # of a range, so that equal numbers are divided by something


@dataclass(frozen=True)
class RoundingErrors(KeyNote):
    """‖x̂ − x‖₂ of each stored key and of its value, (…, 2), fp32: what rounding does to them."""

    bits: int

    def of_new(self, call: EvictionCall) -> Tensor:
        both = (call.of_new(call.key), call.of_new(call.value))
        return torch.stack([rounding_error(x.float(), self.bits) for x in both], -1)


@dataclass(frozen=True)
class QHitter(Policy):
    """Heavy hitters that can be rounded: score = λ · hits + (1 − λ) · q, both between 0 and 1.

    hits: Σ_t A[t, k], from 0 for the least to 1 for the most in its layer and row; q = 1 − (e_K + e_V) / 2 with e the
    error of key and value on a token's own grid of `bits` bits with an integer zero, scaled to 0 … 1 likewise. λ is
    `attention`. Of the budget, the share `recent` is for the newest tokens and the share `first` for the most hit;
    the score chooses the others.

    Source: Zhang et al. 2024, whose code keeps .05, .07 and .08 of the prompt: .25, .35 and .40 of the budget. It
    scales the error of a decoded token among the heads of that token alone, so that one of them always has the best;
    ours among all stored keys. It also rounds what it keeps: so does ours with `rounds`, every token once, on its own
    grid, when the pass that brought it is over; what is held is then rounded, and not packed. Without it, what stays is
    left as it was made.
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
        wrong = torch.stack([_scaled(errors[..., side], real) for side in (0, 1)], -1).mean(-1)
        score = self.attention * _scaled(received, real) + (1 - self.attention) * (1 - wrong)
        newest = call.places >= call.total - (call.budget * self.recent).long()[:, None, None]
        hit = _most(received.masked_fill(~real | newest, -torch.inf), (call.budget * self.first).long())
        return (score + hit * 2).masked_fill(newest, torch.inf)


def rounding_error(x: Float[Tensor, "*rows dim"], bits: int) -> Float[Tensor, "*rows"]:
    """‖x̂ − x‖₂ of each row, x̂ = `rounded_rows`."""
    return (rounded_rows(x, bits) - x).norm(dim=-1)


def rounded_rows(x: Float[Tensor, "*rows dim"], bits: int) -> Float[Tensor, "*rows dim"]:
    """x̂, on the grid of 2^bits steps over each row, of which one is 0 where 0 is in the row's range."""
    high, low, top = x.amax(-1, keepdim=True), x.amin(-1, keepdim=True), 2**bits - 1
    step = (high - low).clamp(min=SMALLEST) / top
    zero = (-(low / step).round()).clamp(0, top)
    return (((x / step).round() + zero).clamp(0, top) - zero) * step


def _scaled(x: Tensor, real: Bool[Tensor, "batch kv_heads key"]) -> Float[Tensor, "batch kv_heads key"]:
    """x from 0 to 1 over what is stored of a row; 0 where all are equal."""
    low = x.masked_fill(~real, torch.inf).amin((1, 2), keepdim=True)
    high = x.masked_fill(~real, -torch.inf).amax((1, 2), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low), 0.0)


def _most(x: Float[Tensor, "batch kv_heads key"], count: Int[Tensor, " batch"]) -> Bool[Tensor, "batch kv_heads key"]:
    """Which are among the `count` largest of their head; of equal ones the newest."""
    rank = x.argsort(dim=-1, stable=True).argsort(dim=-1)
    return (rank >= x.shape[-1] - count[:, None, None]) & (x > -torch.inf)
