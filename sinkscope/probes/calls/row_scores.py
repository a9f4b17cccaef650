"""What the scores behind a chunk of weights tell, and the weights do not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.moments import is_linear


@dataclass(frozen=True, eq=False)
class RowScores:
    """Of each row of a chunk, samples and rows and columns `where`: computed when it is asked for.

    `largest`: max over visible keys of |score|. `bits`: log2 of the weights, some finite number where the mask hides
    the key, −inf in rows that do not count; `entropy` is written over them, so nothing else may read them.
    """

    call: AttentionCall
    where: tuple[slice, slice, slice]
    weights: Float[Tensor, "batch heads query key"]
    bits: Float[Tensor, "batch heads query key"]
    largest: Float[Tensor, "batch heads query"]

    @cached_property
    def entropy(self) -> Float[Tensor, "batch heads query"]:
        """−Σ A log A over keys and the sink, in nats; 0 in rows that do not count."""
        samples, rows, _ = self.where
        _ = self.spread  # while its logarithms are there
        entropy = self.bits.mul_(self.weights).sum(-1).mul_(-math.log(2))
        if self.sink is not None:  # one without any mass adds nothing
            below = (self.call.lse[samples, :, rows] - self.sink).where(self.sink > -torch.inf, 0.0)
            entropy += (-below).exp() * below
        return entropy.clamp_(min=0).where(self.call.counted[samples, :, rows], 0.0)

    @cached_property
    def spread(self) -> tuple[Float[Tensor, "batch heads query"], Float[Tensor, "#batch #heads query"]] | None:
        """σ_t and n_t as in `linear_spread`; None where that gives them: σ² = Σ d² − (Σ d)² / n, d = log A + log n.

        Adding log n leaves the digits where they matter: d is 0 in flat rows.
        """
        if is_linear(self.call):
            return None
        samples, rows, columns = self.where
        visible = self.call.mask.visible(samples, rows, columns).to(self.bits.device)
        slots = 0 if self.sink is None else (self.sink > -torch.inf).int()
        count = (visible.sum(-1) + slots).clamp(min=1).float()
        logits = torch.add(count.log()[..., None], self.bits, alpha=math.log(2)).masked_fill_(~visible, 0.0)
        total, squares = logits.sum(-1), torch.linalg.vector_norm(logits, dim=-1).square()
        if self.sink is not None:
            own = (self.sink - self.call.lse[samples, :, rows] + count.log()).where(self.sink > -torch.inf, 0.0)
            total, squares = total + own, squares + own.square()
        return (squares - total.square() / count).clamp(min=0).sqrt(), count

    @property
    def sink(self) -> Float[Tensor, "batch heads query"] | None:
        """The logit of what the rows attend to beside keys."""
        samples, rows, _ = self.where
        return None if self.call.sink is None else self.call.sink.expand_as(self.call.lse)[samples, :, rows]
