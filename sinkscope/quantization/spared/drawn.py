"""As many tokens at random: the control of any choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.model.columns import columns_of
from sinkscope.quantization.spared.spared import Found, Known, Spared


@dataclass(frozen=True)
class RandomTokens(Found):
    """In each row as many tokens as `like` spares there, drawn among all real tokens that it does not spare.

    Learned tokens before a sequence are never drawn. Rows are drawn one after the other from `seed`. Raises
    `InputError` where `like` spares nothing, and where a row has too few others.
    """

    like: Spared
    seed: int = 0

    def mask(self, model: nn.Module, inputs: Mapping[str, Any]) -> Bool[Tensor, "batch position"]:
        columns, taken = columns_of(model, inputs), self.like.mask(model, inputs)
        learned = torch.zeros_like(taken) if columns.ids is None else columns.ids < 0
        free = columns.real & ~taken & ~learned
        if not bool(taken.any()):
            raise InputError(f"{type(self.like).__name__} spares no token of these inputs: its budget has no control")
        found = torch.zeros_like(taken)
        generator = torch.Generator().manual_seed(self.seed)
        for row, count in enumerate(taken.sum(-1).tolist()):
            others = free[row].nonzero().flatten()
            if len(others) < count:
                raise InputError(f"no control: row {row} spares {count} tokens and has {len(others)} others")
            found[row, others[torch.randperm(len(others), generator=generator)[:count].to(others.device)]] = True
        return found

    def describe(self) -> dict[str, Any]:
        return {"name": "RandomTokens", "like": self.like.describe(), "seed": self.seed}


def others_of(spared: Spared | None, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Known:
    """As many random tokens as `spared` spares in each row of `inputs`: the control of whatever spares them.

    Raises `InputError` where nothing is spared, and as `RandomTokens`.
    """
    if spared is None:
        raise InputError(
            "nothing is spared, so no random tokens can be spared in its place: give spared=..., such as "
            "FirstTokens(1), or compare with nothing spared in a study"
        )
    seed = int(torch.randint(2**31, (1,), generator=generator))
    return RandomTokens(spared, seed).known(model, inputs)
