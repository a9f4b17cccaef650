"""Biases by distance that a model makes for the keys that are kept: ALiBi (Press et al. 2022)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sinkscope.hooks import arguments, family

ALIBI = ("bloom", "mpt")
"""Families whose bias is linear in the index of a key among those kept, which is the rule of streaming."""


class Streams(Protocol):
    """A cache that a mask is cut for."""

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]: ...
    @property
    def followed(self) -> Sequence[Any]: ...


def bias_by_mask(model: nn.Module) -> nn.Module | None:
    """The module of BLOOM that makes ALiBi as wide as the attention mask, which covers what is gone; else None."""
    if family(model) != "bloom":
        return None
    return next(module for module in model.modules() if hasattr(module, "build_alibi_tensor"))


def with_kept_columns(cache: Streams, model: nn.Module) -> None:
    """Give that module the columns of the mask that belong to keys at hand, while `cache` lives and is passed to it.

    The cache answers for its masks as if these columns were the whole text: what is kept are always the last ones, as
    the first tokens of a row stand there only once the row has no padding among the last. Row by row, ALiBi counts the
    real tokens in front of a key.
    """
    module, follower = bias_by_mask(model), weakref.ref(cache)
    if module is None:
        return

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        follows, given = follower(), arguments(module, args, kwargs)
        if follows is None or given.get("past_key_values") is not follows:
            return None
        embedded = given.get("input_ids") if given.get("input_ids") is not None else given["inputs_embeds"]
        rows, queries = embedded.shape[:2]
        length, _ = follows.get_mask_sizes(queries, 0)
        mask = given.get("attention_mask")
        if mask is None:  # transformers 5.17 makes one for all that was seen
            mask = torch.ones(rows, length, dtype=torch.long, device=embedded.device)
        return (), given | {"attention_mask": mask[:, -length:] if isinstance(mask, Tensor) else mask}

    weakref.finalize(cache, module.register_forward_pre_hook(before, with_kwargs=True).remove)
