"""Slots with a learned key: the key and key-value biases of the paper."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.context import Context
from sinkscope.attention.pieces import Learned, Sizes, piece
from sinkscope.attention.slots.terms import SlotTerms
from sinkscope.errors import InputError

INITIAL_STD = 0.02  # of k* and v*, as in the paper's code (lit_gpt/model_kv_bias.py)


@piece
class FixedValue:
    """v* = norm · direction, not learned. "first": v' = [1, 0, …, 0]; "uniform": v'' = [1, …, 1] / √d_h.

    Source: Gu et al. 2025, Table 5.
    """

    direction: Literal["first", "uniform"] = "first"
    norm: Annotated[float, Field(ge=0)] = 1.0

    def tensor(self, like: Tensor) -> Tensor:
        """v* in the shape of a key (kv_heads, dim)."""
        width = like.shape[-1]
        unit = like.new_ones(width) / width**0.5
        if self.direction == "first":
            unit = F.one_hot(torch.zeros((), dtype=torch.long, device=like.device), width).to(like.dtype)
        return (self.norm * unit).expand(like.shape[0], -1)


@piece
class KeySlot:
    """A learned key k* per key-value head, never rotated; Its share therefore depends on where a row begins: under left
    padding pass `position_ids` that count real tokens. `value`:

    "zero": key bias (v* = 0); "learned": key-value bias; a `FixedValue`. `shared`: one k* (and v*) for all heads.
    `d_a`: only the first d_a channels of k* learn, the others stay 0. `initial_logit`: start of an additional learned
    logit b per query head (a very negative one starts the slot closed); the paper has none. With grouped queries k* and
    v* belong to a key-value head (the paper's models have as many of those as query heads). Source: Gu et al. 2025,
    section 7.
    """

    value: Literal["zero", "learned"] | FixedValue = "zero"
    shared: bool = False
    d_a: Annotated[int, Field(ge=1)] | None = None
    initial_logit: float | None = None
    kind: Literal["key"] = "key"
    needs_hidden = False

    @property
    def has_value(self) -> bool:
        return self.value != "zero"

    def build(self, sizes: Sizes) -> nn.Module:
        if self.d_a is not None and self.d_a > sizes.head_dim:
            raise InputError(f"d_a = {self.d_a}: expected at most the head width, {sizes.head_dim}")
        return _KeySlot(self, sizes)


class _KeySlot(Learned):
    def __init__(self, slot: KeySlot, sizes: Sizes) -> None:
        super().__init__()
        self.slot, self.kv_heads, self.head_dim = slot, sizes.kv_heads, sizes.head_dim
        rows = 1 if slot.shared else sizes.kv_heads
        self.key = nn.Parameter(torch.empty(rows, slot.d_a or sizes.head_dim))
        learned = slot.value == "learned"
        self.value = nn.Parameter(torch.empty(rows, sizes.head_dim)) if learned else None
        self.logit = None if slot.initial_logit is None else nn.Parameter(torch.empty(sizes.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.key, std=INITIAL_STD)
        if self.value is not None:
            nn.init.normal_(self.value, std=INITIAL_STD)
        if self.logit is not None and self.slot.initial_logit is not None:
            nn.init.constant_(self.logit, self.slot.initial_logit)

    def forward(self, context: Context) -> SlotTerms:
        key = F.pad(self.key, (0, self.head_dim - self.key.shape[-1])).expand(self.kv_heads, -1)
        value = None if self.value is None else self.value.expand(self.kv_heads, -1)
        if isinstance(self.slot.value, FixedValue):
            value = self.slot.value.tensor(key)
        return SlotTerms(key=key, logit=self.logit, value=value)
