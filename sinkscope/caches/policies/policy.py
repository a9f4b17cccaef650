"""What a policy is: a small frozen value that scores stored keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Note
from sinkscope.errors import InputError


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
        """Whether a decoded token's scores come of `places`, `of_new`, `weights()`, `budget` and notes of keys alone.

        Layers that store alike are then scored in one call, which costs a fraction. Not for scores that read whole
        keys or values: those of all layers at once take much memory.
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

    @abstractmethod
    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        """A score for each stored key of a pass."""


def counted(owner: str, name: str, value: int, least: int = 0) -> None:
    """Check a number in a policy's field. Raises `InputError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{owner}: {name} is {value!r}, expected a whole number of at least {least}")
