"""What the scores tell of each row of a call, and the weights do not."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.moments import is_linear

RowKind = Literal["largest", "entropy", "spread"]
Where = tuple[slice, slice, slice]  # samples, rows and columns of a chunk


@dataclass(frozen=True, eq=False)
class RowScores:
    """Of each row of a call what was `asked` for: filled chunk by chunk, to be read when all are through."""

    call: AttentionCall
    asked: Collection[RowKind]

    @cached_property
    def largest(self) -> Float[Tensor, "batch heads query"]:
        """max over visible keys of |score|; −inf where nothing is visible."""
        return self._filled(-torch.inf)

    @cached_property
    def entropy(self) -> Float[Tensor, "batch heads query"]:
        """−Σ A log A over keys and the sink, in nats; 0 in rows that do not count."""
        entropy = self._bits * -math.log(2)
        if (sink := self.sink) is not None:  # one without any mass adds nothing
            below = (self.call.lse - sink).where(sink > -torch.inf, 0.0)
            entropy += (-below).exp() * below
        return entropy.clamp_(min=0).where(self.call.counted, 0.0)

    @cached_property
    def spread(self) -> tuple[Float[Tensor, "batch heads query"], Float[Tensor, "batch heads query"]] | None:
        """σ_t and n_t as in `linear_spread`; None where that gives them: σ² = Σ d² − (Σ d)² / n, d = log A + log n.

        Adding log n leaves the digits where they matter: d is 0 in flat rows.
        """
        return None if is_linear(self.call) else (self._filled(0.0), self._filled(1.0))

    @cached_property
    def sink(self) -> Float[Tensor, "batch heads query"] | None:
        """The logit of what the rows attend to beside keys."""
        return None if self.call.sink is None else self.call.sink.expand_as(self.call.lse)

    def take_scores(self, where: Where, scores: Float[Tensor, "_ heads _ key"]) -> None:
        """Read a chunk of scores, which are 0 where the mask hides the key."""
        if "largest" in self.asked:
            samples, rows, _ = where
            torch.maximum(scores.amax(-1), -scores.amin(-1), out=self.largest[samples, :, rows])

    def take_weights(self, where: Where, weights: Float[Tensor, "_ heads _ key"], bits: Tensor) -> None:
        """Read a chunk of weights, and their logarithms to the base 2, which are written over.

        `bits`: some finite number where the mask hides the key, −inf in rows that do not count.
        """
        samples, rows, columns = where
        if "spread" in self.asked and self.spread is not None:
            spread, count = self._spread(samples, rows, columns, bits)
            self.spread[0][samples, :, rows], self.spread[1][samples, :, rows] = spread, count
        if "entropy" in self.asked:
            torch.sum(bits.mul_(weights), -1, out=self._bits[samples, :, rows])

    @cached_property
    def _bits(self) -> Float[Tensor, "batch heads query"]:
        """Σ A log2 A over keys."""
        return self._filled(0.0)

    def _filled(self, value: float) -> Float[Tensor, "batch heads query"]:
        return torch.full_like(self.call.lse, value)

    def _spread(
        self, samples: slice, rows: slice, columns: slice, bits: Float[Tensor, "_ heads _ key"]
    ) -> tuple[Float[Tensor, "_ heads _"], Float[Tensor, "_ _ _"]]:
        visible = self.call.mask.visible(samples, rows, columns).to(bits.device)
        sink = None if self.sink is None else self.sink[samples, :, rows]
        slots = 0 if sink is None else (sink > -torch.inf).int()
        count = (visible.sum(-1) + slots).clamp(min=1).float()
        logits = torch.add(count.log()[..., None], bits, alpha=math.log(2)).masked_fill_(~visible, 0.0)
        total, squares = logits.sum(-1), torch.linalg.vector_norm(logits, dim=-1).square()
        if sink is not None:
            own = (sink - self.call.lse[samples, :, rows] + count.log()).where(sink > -torch.inf, 0.0)
            total, squares = total + own, squares + own.square()
        return (squares - total.square() / count).clamp(min=0).sqrt(), count
