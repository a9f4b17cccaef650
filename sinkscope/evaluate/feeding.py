"""A model read through a cache, a stretch of tokens after the other, at the places that the tokens truly have."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.evaluate.arms import Arm
from sinkscope.hooks import device_of, evaluating, is_encoder_decoder, reads_at_once


@dataclass
class Feed:
    """A model with the cache that it fills. `seen`: tokens that were read so far.

    Positions are always given: some families count from 0 at each pass without them.
    """

    model: nn.Module
    cache: Cache
    seen: int = 0
    _takes: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._takes = frozenset(inspect.signature(self.model.forward).parameters)
        if is_encoder_decoder(self.model) or "past_key_values" not in self._takes:
            raise InputError(f"{type(self.model).__name__} is no decoder that reads on from a cache")

    def read(self, ids: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocabulary"]:
        """Read tokens in one pass; the logits behind the last of them, float32.

        One by one where the model has states that it would forget between two passes of several.
        """
        ids = ids.to(device_of(self.model))
        if self.seen and ids.shape[1] > 1 and not reads_at_once(self.model, self.cache):
            return [self.read(one) for one in ids.split(1, 1)][-1]
        given: dict[str, Any] = {"input_ids": ids, "past_key_values": self.cache, "use_cache": True}
        places = torch.arange(self.seen, self.seen + ids.shape[1], device=ids.device)
        given |= {"position_ids": places.expand(len(ids), -1)} if "position_ids" in self._takes else {}
        given |= {"logits_to_keep": 1} if "logits_to_keep" in self._takes else {}
        logits: Tensor = self.model(**given).logits[:, -1]
        self.seen += ids.shape[1]
        return logits.float()


@contextmanager
def feeding(model: nn.Module, arm: Arm) -> Iterator[Feed]:
    """The model in eval mode, with an empty cache of the arm, without gradients."""
    with evaluating(model), torch.no_grad(), arm.open(model) as cache:
        yield Feed(model, cache)


def checked_ids(ids: Int[Tensor, "row position"], context: int) -> Int[Tensor, "row position"]:
    """Texts of which at least one token is left behind the context. Raises `InputError` for others."""
    if ids.ndim != 2 or not len(ids):
        raise InputError(f"texts are token ids of shape (rows, tokens), not {tuple(ids.shape)}")
    if not 0 < context < ids.shape[1]:
        raise InputError(f"a context of {context} tokens: give at least 1 and fewer than the texts' {ids.shape[1]}")
    return ids
