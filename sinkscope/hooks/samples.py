"""Samples that go through a model together, pass after pass with one cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.hooks.dispatch import was_reordered
from sinkscope.hooks.passes import Axis, Forward


@dataclass(eq=False)
class Samples:
    """Samples that go through a model together, from their first pass to the last that continues their cache.

    `first`: tokens that were in the cache before the first pass; `length`: tokens by now.
    """

    size: int
    first: int
    length: int = 0
    prefix: int = 0
    cache: Cache | None = None
    ids: list[Tensor] = field(default_factory=list)
    real: dict[Axis, Tensor] = field(default_factory=dict)

    def continues(self, forward: Forward) -> bool:
        """Whether `forward` goes on with their cache. Raises `InputError` where that was changed in between."""
        if forward.seen == 0 or forward.cache is not self.cache or self.cache is None:
            return False
        if forward.seen != self.length or forward.batch != self.size:
            raise InputError(
                f"the cache holds {forward.batch} rows of {forward.seen} tokens, but {self.size} rows of {self.length} "
                "were observed: it was cropped or expanded between two passes (as assisted decoding does), and what "
                "was counted cannot be taken back; observe a plain decoding loop"
            )
        return True

    def extend(self, forward: Forward, length: int, cache: Cache | None) -> None:
        """Take over what a finished pass was given, and the cache that it left."""
        self.cache, self.length = cache, length
        self.real |= forward.real
        if forward.ids is not None:
            self.ids.append(forward.ids.detach())

    def token_ids(self) -> Int[np.ndarray, "batch position"] | None:
        """Ids of the real tokens, moved to the front, −1 behind them and for learned tokens.

        None where not all were given to the model.
        """
        if not self.ids or self.first:
            return None
        ids = functional.pad(torch.cat(self.ids, 1).cpu(), (self.prefix, 0), value=-1)
        real = self.real["tokens"][:, : ids.shape[1]].cpu() if "tokens" in self.real else torch.ones_like(ids).bool()
        if real.shape != ids.shape:
            return None
        order = torch.argsort((~real).int(), dim=-1, stable=True)
        front = ids.gather(1, order)
        return front.masked_fill(torch.arange(ids.shape[1]) >= real.sum(-1, keepdim=True), -1).numpy()


def check_order(forward: Forward) -> None:
    """Raises `InputError` where beam search permuted the rows of the cache since something is watched or edited."""
    if forward.cache is not None and forward.seen and was_reordered(forward.cache):
        raise InputError("beam search reorders the rows of its cache, so they are no samples: observe one beam")


def cache_of(output: Any) -> Cache | None:
    """The cache that a forward pass returned, from a model output or a tuple."""
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else ()
    return next((value for value in values if isinstance(value, Cache)), None)
