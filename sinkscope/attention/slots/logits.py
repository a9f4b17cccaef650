"""Slots without key and value: only a logit, which takes mass from the tokens."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.context import Context
from sinkscope.attention.masks import separates_documents
from sinkscope.attention.pieces import Learned, Sizes, piece
from sinkscope.attention.slots.terms import SlotTerms
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError

WITHOUT_MODEL = 2048  # positions of StableMask without a model's maximum context


@piece
class ZeroSlot:
    """k* = 0, b = 0, v* = 0: the denominator gains exp(0) = 1, which is softmax-off-by-one (Miller 2023)."""

    kind: Literal["zero"] = "zero"
    has_value = False
    needs_hidden = False

    def build(self, sizes: Sizes) -> nn.Module:
        return _ZeroSlot()


@piece
class LogitSlot:
    """k* = 0, v* = 0, one learned logit b per query head, starting at `initial`: the sink logit of GPT-OSS.

    `reads_input`: b_h(x) = b_h + w_h·x with x the block's input, w_h starting at zero (as in inkling2's `sink_proj`).
    """

    initial: float = 0.0
    reads_input: bool = False
    kind: Literal["logit"] = "logit"
    has_value = False

    @property
    def needs_hidden(self) -> bool:
        return self.reads_input

    def build(self, sizes: Sizes) -> nn.Module:
        return _LogitSlot(sizes, self.initial, self.reads_input)


@piece
class SuffixSlot:
    """The pseudo logits of StableMask: b_t = log Σ_{t < j < context} exp(−γ j), j and t counted from 0.

    A query gives mass to the positions after its own, up to the maximum `context` (None: that of the model's
    configuration, 2048 where there is no model); that mass is dropped. The last position has none after it, so its row
    sums to one; so do rows beyond the context. Positions are those of the text, without sink tokens; under a document
    mask they count from the document's start. Equal to a softmax over all positions with p_tj = −γ j on later ones,
    then masked. `gamma`: a number for all heads, or "alibi", 2^(−8 h / H) for head h of H. Source: Yin et al. 2024
    (2402.04779); their code does not run.
    """

    context: Annotated[int, Field(ge=1)] | None = None
    gamma: Annotated[float, Field(ge=0)] | Literal["alibi"] = "alibi"
    kind: Literal["suffix"] = "suffix"
    has_value = False
    needs_hidden = False

    def build(self, sizes: Sizes) -> nn.Module:
        return _SuffixSlot(sizes.heads, self.context or WITHOUT_MODEL, self.gamma)


class _ZeroSlot(nn.Module):
    def forward(self, context: Context) -> SlotTerms:
        return SlotTerms()


class _LogitSlot(Learned):
    def __init__(self, sizes: Sizes, initial: float, reads_input: bool) -> None:
        super().__init__()
        self.initial = initial
        self.logit = nn.Parameter(torch.empty(sizes.heads))
        self.weight = nn.Parameter(torch.empty(sizes.heads, sizes.hidden_size)) if reads_input else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.logit, self.initial)
        if self.weight is not None:
            nn.init.zeros_(self.weight)

    def forward(self, context: Context) -> SlotTerms:
        if self.weight is None:
            return SlotTerms(logit=self.logit)
        if context.hidden is None:
            raise InputError("an input-dependent sink logit reads the block's input: pass `hidden`")
        weight = self.weight.to(context.hidden.dtype)
        read: Float[Tensor, "batch query heads"] = F.linear(context.hidden, weight, self.logit.to(weight.dtype))
        return SlotTerms(logit=read.transpose(1, 2))  # (batch, heads, query)


class _SuffixSlot(nn.Module):
    def __init__(self, heads: int, context: int, gamma: float | Literal["alibi"]) -> None:
        super().__init__()
        self.context = context
        self.gammas = [2 ** (-8 * (h + 1) / heads) for h in range(heads)] if gamma == "alibi" else [gamma] * heads

    def forward(self, context: Context) -> SlotTerms:
        # Left padding and sink tokens stand below 0.
        place = self._place(context.visibility).clamp(min=0)[:, None].float()
        return SlotTerms(logit=torch.cat([self._mass(place, float(gamma)) for gamma in self.gammas], 1))

    @staticmethod
    def _place(visibility: Visibility) -> Int[Tensor, "#batch query"]:
        """The positions of queries in their row, or in their document if masks separate documents."""
        # A mask written out has lost its documents: only the rule that it narrows knows them.
        visibility = visibility.rule or visibility
        if not separates_documents(visibility.mask):
            return visibility.query.order - visibility.sinks
        # Counted over all keys: with a cache a document may begin before the first query.
        return visibility.key.restarted(visibility.sinks)[:, -visibility.query.count :]

    def _mass(self, place: Tensor, gamma: float) -> Tensor:
        """log Σ_{t < j < context} exp(−γ j) as a geometric sum; −inf where no position is left."""
        left = (self.context - 1 - place).clamp(min=0)
        if gamma == 0:
            return left.log()
        # Σ_{j=t+1}^{C−1} e^−γj = e^−γ(t+1) (1 − e^−γ·left) / (1 − e^−γ), with C the context and left = C − 1 − t.
        # expm1, since 1 − e^−γ cancels for the small γ of ALiBi's last heads.
        return -gamma * (place + 1) + (-torch.expm1(-gamma * left)).log() - math.log(-math.expm1(-gamma))
