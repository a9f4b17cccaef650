"""Policies that use only the places of keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.policies.policy import Policy, Wrapping, counted


@dataclass(frozen=True)
class Streaming(Policy):
    """The first `sinks` tokens and the newest ones, at their true positions.

    score = place. Source: Xiao et al. 2024. Positions are unchanged here; `StreamingCache` renumbers them.
    """

    sinks: int = 4
    together = True

    def __post_init__(self) -> None:
        counted("Streaming", "sinks", self.sinks)

    @property
    def least(self) -> int:
        return self.sinks + 1

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        # In fp32, places beyond 2^24 would be rounded and their scores equal.
        return call.places.double().masked_fill(call.positions < self.sinks, torch.inf)


@dataclass(frozen=True)
class RandomKeys(Policy):
    """A random order of places per head: the control with the same budget.

    The order depends only on `seed`, layer, head and position, so it is the same in a batch, in chunks and on every
    device. `texts`: the number of each row's text, if each is to have its own order.
    """

    seed: int = 0
    texts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        counted("RandomKeys", "seed", self.seed)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        device = call.places.device
        heads = torch.arange(call.places.shape[1], device=device)[:, None]
        stream = (self.seed * 4099 + call.layer) * 4099 + heads
        if self.texts:
            stream = stream + _mixed(torch.tensor(self.texts, device=device) + 1)[:, None, None]
        # fp64 holds 31-bit numbers exactly; fp32 would make neighbors equal.
        return _mixed(_mixed(stream) + call.positions).double()


@dataclass(frozen=True)
class RandomLike(Wrapping):
    """The control of a policy: it keeps what that policy always keeps, in the same layers, and the rest in random
    order.

    Keys that must stay (+inf) stay, layers that keep everything do so, classes of keys are evicted in their order
    (`Policy.ranks`), and if the policy drops keys by itself (−inf), as many are dropped. Notes are kept as for that
    policy, so both hold the same bytes.
    """

    seed: int = 0
    texts: tuple[int, ...] = ()
    together = False  # each layer has its own order

    def __post_init__(self) -> None:
        counted("RandomLike", "seed", self.seed)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        scores, ranks = self.policy.score(call), self.policy.ranks(call)
        # Below 1, so that the class of a key outweighs its place in the order.
        order = RandomKeys(self.seed, self.texts).score(call) / 2**31
        order = order if ranks is None else order + ranks
        order = order.masked_fill(scores == torch.inf, torch.inf)
        if not self.drops:
            return order
        left = ((scores > -torch.inf) & call.real).sum(-1, keepdim=True)
        place = order.masked_fill(~call.real, -torch.inf).argsort(-1, descending=True).argsort(-1)
        return order.masked_fill(place >= left, -torch.inf)


def _mixed(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """A scrambled number in 0 … 2^31 − 1 from the low 32 bits of `x` (the integer hash "lowbias32")."""
    low = 0xFFFFFFFF
    x = x & low
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & low
    x = ((x ^ (x >> 15)) * 0x846CA68B) & low
    return (x ^ (x >> 16)) >> 1
