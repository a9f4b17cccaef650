"""Arms of eviction policies, each beside its controls: a random policy of the same budget, and a random place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sinkscope.caches import Policy, Protect, evicting, policy_of
from sinkscope.caches.eviction import When
from sinkscope.errors import InputError
from sinkscope.evaluate.arms import Arm
from sinkscope.measurements import Measurement
from sinkscope.sinks import Choice, First, Measured, Online, Positions

NEVER_DRAWN = 8  # the first places, where sinks are likely: no control protects one of them
RECENT = 32  # newest tokens that stay, where budgets have the room


@dataclass(frozen=True)
class Protection:
    """Tokens that stay whatever a policy says, and as many at random places instead, for the control.

    `sinks` is None where nothing is protected; the control then protects one random place.
    """

    name: str
    sinks: Choice | None
    elsewhere: Positions
    positions: tuple[int, ...] = ()  # that are protected in some head, where they are known

    @classmethod
    def none(cls, context: int, seed: int = 0) -> Protection:
        return cls("none", None, random_places(1, context, seed))

    @classmethod
    def first(cls, count: int, context: int, seed: int = 0) -> Protection:
        """The first tokens, as StreamingLLM has it."""
        return cls(f"first:{count}", First(count) if count else None, random_places(count, context, seed))

    @classmethod
    def online(cls, epsilon: float, context: int, seed: int = 0) -> Protection:
        """What is a sink in the prompt, found while it is read; the control protects one place."""
        return cls("online", Online(epsilon), random_places(1, context, seed))

    @classmethod
    def measured(cls, measurement: Measurement, epsilon: float, context: int, seed: int = 0) -> Protection:
        """The positions that are sinks of some head in a measurement; each head protects its own.

        Raises `InputError` where there is none.
        """
        alpha = measurement.data["attention_received"].mean("sample").max(("layer", "head")).values
        sinks = [int(place) for place in np.flatnonzero(alpha > epsilon)]
        if not sinks:
            raise InputError(
                f"no position receives more than epsilon = {epsilon:g} of the attention: there is no measured sink to "
                "protect; lower --epsilon, or protect first:4"
            )
        elsewhere = random_places(len(sinks), context, seed, without=sinks)
        return cls("measured", Measured(epsilon, measurement=measurement), elsewhere, tuple(sinks))


def random_places(count: int, context: int, seed: int, without: Iterable[int] = ()) -> Positions:
    """Positions of a context, none among its first and none of `without`. Raises `InputError` where it is too short."""
    free = sorted(set(range(NEVER_DRAWN, context)) - set(without))
    if len(free) < count:
        raise InputError(f"a context of {context} tokens has no {count} places for a control: give longer texts")
    drawn = np.random.default_rng(seed).choice(free, count, replace=False)
    return Positions(*sorted(int(place) for place in drawn))


@dataclass(frozen=True)
class Share:
    """A budget: a number of keys per head (int), or a share of the context (float, above 0 and at most 1)."""

    keys: int | float

    def __str__(self) -> str:
        return f"{100 * self.keys:g}%" if isinstance(self.keys, float) else str(self.keys)

    def of(self, context: int) -> int:
        """Keys per head that it is of a context."""
        return max(1, int(self.keys * context + 1e-9)) if isinstance(self.keys, float) else self.keys


def policy_arms(
    policies: Sequence[str],
    budgets: Sequence[int | float],
    *,
    context: int,
    protection: Protection | None = None,
    recent: int | None = None,
    when: When = "prefill",
    seed: int = 0,
) -> list[Arm]:
    """An arm for each policy at each budget, and their controls.

    `policies` are names of `sinkscope.caches.POLICIES`. Every budget has a random policy that protects the same, and
    every policy with a protection an arm that protects as many random places instead; where nothing is protected, the
    first policy has one. `recent` newest tokens stay in all arms: 32 unless said, or a quarter of the smallest budget
    where that is less; a policy that keeps recent tokens by itself keeps as many.

    Raises `InputError` for unknown names, and for budgets of the context that cannot hold what must stay.
    """
    if not policies or not budgets:
        raise InputError("policy_arms: give at least one policy and one budget")
    protection = protection or Protection.none(context, seed)
    shares = [Share(keys) for keys in budgets]
    for share in shares:
        _check_share(share)
    newest = min(RECENT, min(share.of(context) for share in shares) // 4) if recent is None else recent
    chosen = dict.fromkeys([*policies, "random"])
    arms = []
    for name in chosen:
        for share in shares:
            policy, control = policy_of(name), name == "random" and "random" not in policies
            arms.append(_arm(f"{name}@{share}", name, policy, share, protection.sinks, newest, when, context, control))
            if name in policies and (protection.sinks is not None or name == policies[0]):
                series = f"{name}, random place"
                arms.append(
                    _arm(
                        f"{name}@{share}+place",
                        series,
                        policy,
                        share,
                        protection.elsewhere,
                        newest,
                        when,
                        context,
                        True,
                    )
                )
    return arms


def _arm(
    name: str,
    series: str,
    policy: Policy,
    share: Share,
    sinks: Choice | None,
    recent: int,
    when: When,
    context: int,
    control: bool,
) -> Arm:
    kept = Protect(policy.fitted(recent), sinks, recent)
    if share.of(context) < kept.least:
        raise InputError(
            f"{name}: {share.of(context)} of {context} tokens are too few to keep, with {kept.least - 1} that must "
            f"stay ({recent} recent ones among them): give a budget of at least {kept.least}, or a smaller --recent"
        )
    return Arm(name, lambda model: evicting(model, kept, share.keys, when), series, control)


def _check_share(share: Share) -> None:
    keys = share.keys
    if isinstance(keys, bool) or keys <= 0 or (isinstance(keys, float) and keys > 1):
        raise InputError(f"budget {keys}: a number of keys of at least 1, or a share above 0 and at most 100%")
