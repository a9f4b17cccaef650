"""Policies that distribute a budget over layers or heads as their papers do, around any policy that scores keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from sinkscope.caches.budgets import AdaptiveHeads, Budget, Pyramid, Uniform
from sinkscope.caches.policies.last_queries import SnapKV
from sinkscope.caches.policies.policy import Policy, Wrapping
from sinkscope.errors import InputError


@dataclass(frozen=True)
class AdaKV(Wrapping):
    """SnapKV (or another policy), with a layer's keys distributed to the heads with the highest scores
    (`AdaptiveHeads`).

    The window that every head keeps is not distributed. Source: Feng et al. 2024.
    """

    policy: Policy = field(default_factory=SnapKV)
    alpha: float = 0.2

    def __post_init__(self) -> None:
        AdaptiveHeads(1, self.alpha)

    def spread(self, budget: Budget) -> Budget:
        return AdaptiveHeads(_number(self, budget), self.alpha)


@dataclass(frozen=True)
class PyramidKV(Wrapping):
    """SnapKV (or another policy), with more keys in early layers than in late ones (`Pyramid`).

    The window that every head keeps is not distributed. Source: Cai et al. 2024.
    """

    policy: Policy = field(default_factory=SnapKV)
    beta: float = 20.0

    def __post_init__(self) -> None:
        Pyramid(1, self.beta)

    def spread(self, budget: Budget) -> Budget:
        return Pyramid(_number(self, budget), self.beta)


def _number(policy: Policy, budget: Budget) -> Budget:
    if not isinstance(budget, Uniform):
        raise InputError(f"{type(policy).__name__} distributes a budget by itself: give it a number of keys or a share")
    return budget
