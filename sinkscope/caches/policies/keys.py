"""Policies that look at keys and values, and at no query."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from sinkscope.caches.call import EvictionCall, wide
from sinkscope.caches.notes import KeyLengths, Note
from sinkscope.caches.policies.policy import Policy, counted


@dataclass(frozen=True)
class KeyNorm(Policy):
    """Keys of low length receive much attention: score = −‖k‖₂. The first `skipped_layers` keep everything.

    Source: Devoto et al. 2024, who skip two layers; we skip none unless asked to.
    """

    skipped_layers: int = 0
    together = True

    def __post_init__(self) -> None:
        counted("KeyNorm", "skipped_layers", self.skipped_layers)

    @property
    def needs(self) -> tuple[Note, ...]:
        return (KeyLengths(),)

    @property
    def skipped(self) -> int:
        return self.skipped_layers

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        return -call.notes[KeyLengths()]


@dataclass(frozen=True)
class KeyDiff(Policy):
    """Keys unlike the others: score = −cos(k, mean of k/‖k‖ over all stored keys). Source: Park et al. 2025."""

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        unit = functional.normalize(wide(call.key), dim=-1) * call.real[..., None]
        anchor = unit.sum(2, keepdim=True) / call.real.sum(-1)[..., None, None].clamp(min=1)
        return -functional.cosine_similarity(unit, anchor, dim=-1)


@dataclass(frozen=True)
class LagKV(Policy):
    """Keys and values that vary over channels, measured by the range of those that follow.

    Behind the first `sinks` tokens, stored keys are cut into parts of `lag`, in the order of their places. Of part p:
    s = softmax_part(std_channel((x − min_{p+1} x) / (max_{p+1} x − min_{p+1} x))), for keys and for values; the score
    is the rank of their mean within the part, over `lag`. Sinks, the last part and what is behind it have score 1;
    a text of fewer than two parts is scored by place. Source: Liang et al. 2025.
    """

    sinks: int = 4
    lag: int = 128

    def __post_init__(self) -> None:
        counted("LagKV", "sinks", self.sinks)
        counted("LagKV", "lag", self.lag, least=2)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        order = call.places.masked_fill(~call.real, -1).argsort(-1)
        found = torch.zeros(order.shape, device=order.device)
        for row, real in enumerate(call.real.sum(-1)):
            for head, count in enumerate(real.tolist()):
                at = order[row, head, order.shape[2] - count :]
                key, value = wide(call.key[row, head, at]), wide(call.value[row, head, at])
                found[row, head, at] = self._of_row(key, value)
        return found

    def _of_row(self, key: Tensor, value: Tensor) -> Float[Tensor, " key"]:
        behind = len(key) - self.sinks
        parts = max(0, behind) // self.lag
        score = torch.ones(len(key), device=key.device)
        if parts < 2:
            if behind > 0:
                score[self.sinks :] = torch.arange(behind, device=key.device) / behind
            return score
        cut = slice(self.sinks, self.sinks + parts * self.lag)
        both = torch.stack([_spread(x[cut].unflatten(0, (parts, self.lag))) for x in (key, value)]).mean(0)
        score[self.sinks : cut.stop - self.lag] = (both.argsort(-1).argsort(-1) / self.lag).flatten()
        return score


def _spread(x: Float[Tensor, "part lag dim"]) -> Float[Tensor, "part_but_last lag"]:
    low, high = x[1:].amin(1, keepdim=True), x[1:].amax(1, keepdim=True)
    # A channel that does not vary in a part says nothing of the one before: 0/0 would make the whole token NaN.
    share = torch.where(high > low, (x[:-1] - low) / (high - low), 0.0)
    return share.std(-1).softmax(-1)
