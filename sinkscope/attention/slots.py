"""Slots: what a query may attend to that is no token.

Every slot is an extra key that all queries see. Its logit is  scaling · q·k* + b  and its value v*; each of k*, b,
v* may be absent (zero). That one form serves the reference, the fast path (one more key, and one more channel for b)
and the observers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass as piece
from torch import Tensor, nn

from sinkscope.attention.learned import Learned
from sinkscope.attention.pieces import STRICT
from sinkscope.attention.sizes import Sizes

INITIAL_STD = 0.02  # of k* and v*, as in the paper's code (lit_gpt/model_kv_bias.py)


@dataclass(frozen=True, eq=False)
class SlotTerms:
    """The three parts of one slot. Key heads follow `kv_heads`, logits follow the query heads."""

    key: Float[Tensor, "kv_heads dim"] | None = None
    logit: Float[Tensor, "heads"] | Float[Tensor, "batch heads query"] | None = None
    value: Float[Tensor, "kv_heads value_dim"] | None = None


@piece(frozen=True, config=STRICT)
class ZeroSlot:
    """k* = 0, b = 0, v* = 0: the denominator gains exp(0) = 1, which is softmax-off-by-one [A24]."""

    kind: Literal["zero"] = "zero"
    has_value = False

    def build(self, sizes: Sizes) -> nn.Module:
        return _ZeroSlot()


@piece(frozen=True, config=STRICT)
class LogitSlot:
    """k* = 0, v* = 0, one learned logit b per query head, starting at `initial`: the sink logit of GPT-OSS."""

    initial: float = 0.0
    kind: Literal["logit"] = "logit"
    has_value = False

    def build(self, sizes: Sizes) -> nn.Module:
        return _LogitSlot(sizes.heads, self.initial)


@piece(frozen=True, config=STRICT)
class KeySlot:
    """A learned key k* per key-value head, never rotated; `value` says what it carries [A7, A8].

    "zero": K bias (v* = 0); "learned": KV bias. Source: Gu et al., section 7. With grouped queries k* and v* belong to
    a key-value head (the paper's models have as many of those as query heads).
    """

    value: Literal["zero", "learned"] = "zero"
    kind: Literal["key"] = "key"

    @property
    def has_value(self) -> bool:
        return self.value != "zero"

    def build(self, sizes: Sizes) -> nn.Module:
        return _KeySlot(sizes, learned_value=self.has_value)


Slot = Annotated[ZeroSlot | LogitSlot | KeySlot, Field(discriminator="kind")]


class _ZeroSlot(nn.Module):
    def forward(self) -> SlotTerms:
        return SlotTerms()


class _LogitSlot(Learned):
    def __init__(self, heads: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.logit = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.logit, self.initial)

    def forward(self) -> SlotTerms:
        return SlotTerms(logit=self.logit)


class _KeySlot(Learned):
    def __init__(self, sizes: Sizes, learned_value: bool) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.empty(sizes.kv_heads, sizes.head_dim))
        self.value = nn.Parameter(torch.empty(sizes.kv_heads, sizes.head_dim)) if learned_value else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.key, std=INITIAL_STD)
        if self.value is not None:
            nn.init.normal_(self.value, std=INITIAL_STD)

    def forward(self) -> SlotTerms:
        return SlotTerms(key=self.key, value=self.value)
