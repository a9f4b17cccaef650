"""Packed rows: which documents a model's inputs tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.attention import Document
from sinkscope.attention.masks import leaves
from sinkscope.errors import InputError
from sinkscope.hooks.passes import Forward


def documents_of(
    model: nn.Module, forward: Forward, given: Mapping[str, Any], total: int
) -> Int[Tensor, "_ position"] | None:
    """The number of each of `total` columns' document; None where the inputs tell none apart.

    By `document_ids` of a lab model whose masks keep documents apart, by positions that start anew (which transformers
    reads where there is neither a mask nor a cache), or by `cu_seq_lens` of one row. `given`: the arguments by name.
    Raises `InputError` for `document_ids` of another length.
    """
    numbers, places = given.get("document_ids"), given.get("position_ids")
    if isinstance(numbers, Tensor) and _keeps_documents_apart(model):
        if numbers.shape[-1] + forward.prefix != total:
            raise InputError(
                f"document_ids {tuple(numbers.shape)}: expected (batch, {total - forward.prefix}), one number for each "
                "token so far"
            )
        return functional.pad(numbers, (forward.prefix, 0), value=int(numbers.min()) - 1)
    if given.get("attention_mask") is not None or forward.cache is not None or forward.prefix:
        return None
    if isinstance(places, Tensor) and places.ndim == 2 and places.shape[1] == total:
        anew = functional.pad(places.diff(dim=-1) != 1, (1, 0), value=False)
        if bool(anew.any()):
            return anew.cumsum(-1)
    ends = given.get("cu_seq_lens_q")
    if isinstance(ends, Tensor) and ends.ndim == 1 and forward.batch == 1 and int(ends[-1]) == total:
        return torch.searchsorted(ends, torch.arange(total, device=ends.device), right=True)[None]
    return None


def _keeps_documents_apart(model: nn.Module) -> bool:
    """Whether a mask of a lab model has documents."""
    specs = getattr(getattr(model, "config", None), "specs", ())
    return any(isinstance(leaf, Document) for spec in specs for leaf in leaves(spec.mask))
