"""What a policy is: a small frozen value that scores stored keys."""

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
    """Which stored keys are worth keeping: those of the highest score stay.

    A score of +inf says that a key must stay, −inf that it goes even where there is room; what padding and empty slots
    get does not matter. Where heads share a latent, their scores are averaged.
    """

    @property
    def needs(self) -> tuple[Note, ...]:
        """What is to be kept of passes; found in `call.notes`."""
        return ()

    @property
    def reads_weights(self) -> bool:
        """Whether it asks for attention weights, in `score` or in a note."""
        return any(note.reads_weights for note in self.needs)

    @property
    def least(self) -> int:
        """The smallest budget of a head that it can keep to: what it always keeps, and one more."""
        return 1

    @property
    def skipped(self) -> int:
        """How many of the first layers keep everything."""
        return 0

    @property
    def reads_rotation(self) -> bool:
        """Whether it asks how the layer turns its keys (`call.rotation`)."""
        return False

    @property
    def together(self) -> bool:
        """Whether a decoded token's scores come of what a call has of all layers at once: no `module`, no note of rows.

        Layers that store alike are then scored in one call, which costs a fraction. Their keys and values are those of
        all layers, of which no copy is to be made.
        """
        return False

    @property
    def drops(self) -> bool:
        """Whether its scores may be −inf, so that more than one key may go at a step."""
        return False

    @property
    def merges(self) -> str | None:
        """How evicted keys are merged into kept ones (`merging.merged`); None: they are gone."""
        return None

    @property
    def rounding(self) -> Callable[[Tensor], Tensor] | None:
        """What becomes of each key and value (…, dim) that a pass adds, once the pass has run; None: nothing."""
        return None

    def spread(self, budget: Budget) -> Budget:
        """How it spreads a budget over layers and heads, where its paper says so; default: as it is."""
        return budget

    def newest(self, keys: int) -> int:
        """How many of the newest tokens it keeps by itself, where a head may keep so many `keys`."""
        return 0

    def fitted(self, newest: int) -> Policy:
        """The same policy, which keeps at most so many of the newest tokens by itself, and at least one."""
        return self

    def ranks(self, call: EvictionCall) -> Tensor | None:
        """Classes of stored keys (0, 1, …), of which the higher go last whatever is said within a class."""
        return None

    def describe(self, keys: int | None = None) -> dict[str, Any]:
        """The policy as it is used, as JSON: its name and fields, and the policy that it is around (`of`).

        `changed_from`: the defaults of fields that have other values; `newest`: how many of the newest tokens it keeps
        by itself with a budget of so many `keys`.
        """
        about: dict[str, Any] = {"policy": type(self).__name__}
        changed: dict[str, Any] = {}
        own: Any = fields(self) if is_dataclass(self) else ()
        for each in own:
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
    """A policy around another one, `policy`: what it does not change is that one's."""

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
    """Check a number in a policy's field. Raises `InputError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{owner}: {name} is {value!r}, expected a whole number of at least {least}")
