"""The interface of eviction policies: a small frozen value that scores stored keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from sinkscope.caches.budgets import Budget
from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Note
from sinkscope.errors import InputError

PLAIN = (bool, int, float, str)


class Policy(ABC):
    """Which stored keys are worth keeping: those with the highest scores stay.

    A score of +inf means that a key must stay, −inf that it is evicted even if there is room; scores of padding and
    empty slots are ignored. If heads share a latent, their scores are averaged.
    """

    @property
    def needs(self) -> tuple[Note, ...]:
        """Notes to keep of passes; `score` finds them in `call.notes`."""
        return ()

    @property
    def reads_weights(self) -> bool:
        """Whether it needs attention weights, in `score` or in a note."""
        return any(note.reads_weights for note in self.needs)

    @property
    def least(self) -> int:
        """The smallest budget per head that it supports: the keys that it always keeps, and one more."""
        return 1

    @property
    def skipped(self) -> int:
        """How many of the first layers keep everything."""
        return 0

    @property
    def reads_rotation(self) -> bool:
        """Whether it needs the layer's rotation (`call.rotation`)."""
        return False

    @property
    def together(self) -> bool:
        """Whether a decoded token may be scored in one call for all layers: `score` and notes treat rows of the batch
        independently and do not read `module` or `layer`.

        Layers of the same shape are then scored in one call, at a fraction of the cost. It holds the keys and values of
        all layers, so `score` should not copy them as a whole.
        """
        return False

    @property
    def drops(self) -> bool:
        """Whether its scores may be −inf, so that several keys may be evicted in one step."""
        return False

    @property
    def merges(self) -> str | None:
        """How evicted keys are merged into kept ones (`merging.merged`); None: they are discarded."""
        return None

    @property
    def rounding(self) -> Callable[[Tensor], Tensor] | None:
        """A function of the keys and values (…, dim) that a pass adds, applied after the pass; None: none."""
        return None

    def spread(self, budget: Budget) -> Budget:
        """How it distributes a budget over layers and heads, if its paper defines that; default: unchanged."""
        return budget

    def newest(self, keys: int) -> int:
        """How many of the newest tokens it keeps by itself if a head may keep so many `keys`."""
        return 0

    def fitted(self, newest: int) -> Policy:
        """The same policy, keeping at most `newest` of the newest tokens by itself, and at least one."""
        return self

    def ranks(self, call: EvictionCall) -> Tensor | None:
        """Classes of stored keys (0, 1, …); keys of a higher class are evicted last, whatever their scores."""
        return None

    def describe(self, keys: int | None = None) -> dict[str, Any]:
        """The policy as JSON: its name and fields, and the policy that it wraps (`of`).

        `changed_from`: the defaults of fields with other values. `newest`: how many of the newest tokens it keeps by
        itself with a budget of so many `keys`.
        """
        about: dict[str, Any] = {"policy": type(self).__name__}
        changed: dict[str, Any] = {}
        all_fields: Any = fields(self) if is_dataclass(self) else ()
        for each in all_fields:
            value = getattr(self, each.name)
            if isinstance(value, Policy):
                about["of"] = value.describe(keys)
                continue
            about[each.name] = _plain(value)
            if each.default is not MISSING and each.default is not None and value != each.default:
                changed[each.name] = _plain(each.default)
        about |= {"changed_from": changed} if changed else {}
        return about if keys is None else about | {"newest": self.newest(keys)}

    @abstractmethod
    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        """A score for each stored key of a pass."""


@dataclass(frozen=True)
class Wrapping(Policy):
    """A policy around another one, `policy`; whatever it does not override is that policy's."""

    policy: Policy

    @property
    def needs(self) -> tuple[Note, ...]:
        return self.policy.needs

    @property
    def reads_weights(self) -> bool:
        return self.policy.reads_weights

    @property
    def least(self) -> int:
        return self.policy.least

    @property
    def skipped(self) -> int:
        return self.policy.skipped

    @property
    def reads_rotation(self) -> bool:
        return self.policy.reads_rotation

    @property
    def together(self) -> bool:
        return self.policy.together

    @property
    def drops(self) -> bool:
        return self.policy.drops

    @property
    def merges(self) -> str | None:
        return self.policy.merges

    @property
    def rounding(self) -> Callable[[Tensor], Tensor] | None:
        return self.policy.rounding

    def spread(self, budget: Budget) -> Budget:
        return self.policy.spread(budget)

    def newest(self, keys: int) -> int:
        return self.policy.newest(keys)

    def fitted(self, newest: int) -> Policy:
        return replace(self, policy=self.policy.fitted(newest))

    def ranks(self, call: EvictionCall) -> Tensor | None:
        return self.policy.ranks(call)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        return self.policy.score(call)


def _plain(value: Any) -> Any:
    """A field as JSON."""
    return (
        list(value) if isinstance(value, tuple) else value if value is None or isinstance(value, PLAIN) else str(value)
    )


def counted(owner: str, name: str, value: int, least: int = 0) -> None:
    """Check a policy's integer field. Raises `InputError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{owner}: {name} is {value!r}, expected a whole number of at least {least}")
