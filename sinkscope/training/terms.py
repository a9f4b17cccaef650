"""Terms that are added to the training loss and logged separately."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.data import UNSCORED
from sinkscope.training.validation import targets


def z_loss(
    logits: Float[Tensor, "batch position vocabulary"], labels: Int[Tensor, "batch position"], *, shifted: bool
) -> Float[Tensor, ""]:
    """Σ_t (log Σ_v exp z_tv)² over the positions whose prediction counts, in fp32."""
    counts = targets(labels, shifted) != UNSCORED
    return (logits.float().logsumexp(-1).square() * counts).sum()


class Terms:
    """Terms added to the loss since the last row of the log, by name: a number for each pass.

    A term of a whole step is the sum over its passes; with several processes, the mean over them.
    """

    def __init__(self) -> None:
        self._added: dict[str, list[Tensor]] = defaultdict(list)
        self._latest: list[Tensor] = []

    def begin(self) -> None:
        """Start another pass."""
        self._latest = []

    def add(self, name: str, term: Float[Tensor, ""]) -> None:
        """Record a term of this pass."""
        self._added[name].append(term.detach())
        self._latest.append(term.detach())

    def latest(self) -> Float[Tensor, ""] | float:
        """The sum of this pass's terms, 0 without any."""
        return torch.stack(self._latest).sum() if self._latest else 0.0

    def means(self, passes: int, mean: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Each term, averaged over the steps since the last call, of `passes` passes each.

        `mean`: over processes; all of them must call this.
        """
        added, self._added = self._added, defaultdict(list)
        # len(terms) = steps · passes, so this is the total divided by the number of steps.
        return {name: float(mean(torch.stack(terms).sum())) * passes / len(terms) for name, terms in added.items()}
