"""What the attention layer of a transformers model with an attached operation computes with.

Its attention function is given a mask in transformers' form, a tensor or None, and no input of the block. What it works
with instead is written here for the time of a call, once, so that observers read what the layer used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.attention import Bias, Causal, Full, Mask, Tokens, Visibility
from sinkscope.attention.functional import Written

IMPLEMENTATION = "sinkscope_attached"  # the name under which attached layers find their attention function
EVERYTHING = Full()
PLACE = "hosted"  # the attribute of an attention module under which its call is kept


@dataclass(frozen=True, eq=False)
class Hosted:
    """One call of an attached layer: its block's input, tokens in its cache before (a tensor in a graph with a static
    cache), and, as soon as its attention function has run, the mask as a `Visibility` and what was added to the scores.
    """

    hidden: Float[Tensor, "batch query width"]
    seen: int | Tensor = 0
    visibility: Visibility | None = None
    bias: Bias | None = None


def hosted(module: nn.Module) -> dict[str, Any]:
    """What replaces arguments of the attention function of an attached layer; nothing for any other layer."""
    call = getattr(module, PLACE, None)
    if not isinstance(call, Hosted) or call.visibility is None:
        return {}
    known = {"attention_mask": call.visibility, "hidden_states": call.hidden, "bias": call.bias}
    # A softcap is in the bias, the host's own sink among the operation's slots.
    return known | {"carried": None, "softcap": None, "s_aux": None}


@dataclass(frozen=True, eq=False)
class Joined:
    """An operation's `own` mask and what a host may say without a tensor, joined beforehand: while a call is traced no
    mask can be made (their constructors validate). `own` is None where it adds nothing."""

    own: Mask | None
    causal: Mask
    full: Mask

    @classmethod
    def of(cls, own: Mask) -> Joined:
        """The default, `Causal()`, adds nothing, so that a bidirectional host stays one."""
        return cls(None, Causal(), Full()) if own == Causal() else cls(own, Causal() & own, Full() & own)


def visibility_of(
    mask: Tensor | None, own: Joined, causal: bool, query: Tokens, key: Tokens, refuse: Callable[[str], Exception]
) -> Visibility:
    """The host's mask and an operation's `own`, both in force.

    `mask`: what transformers' `sdpa_mask` gives, booleans (batch, 1, query, key) or None for "everything, or everything
    up to the query where the layer is `causal`"; longer than the keys where a static cache has room. `query`, `key`:
    places in the row, padding counted. Raises what `refuse` makes of a mask that says more than who sees whom.
    """
    if mask is None:
        return Visibility(own.causal if causal else own.full, key if query.count == key.count else query, key)
    allowed = _booleans(mask, refuse)[..., : key.count]
    if allowed.ndim != 4 or allowed.shape[1] != 1 or allowed.shape[2:] != (query.count, key.count):
        raise refuse(f"its mask {tuple(mask.shape)} is not (batch, 1, {query.count} queries, {key.count} keys)")
    place = (allowed.sum(-1)[:, 0] - 1).clamp(min=0)  # in a causal row without a window: real tokens before it
    if own.own is not None:
        allowed = allowed & own.own.visible(query, key)[:, None]
    return Written(EVERYTHING, Tokens(place, None, allowed.any(-1)[:, 0]), key, allowed)


def _booleans(mask: Tensor, refuse: Callable[[str], Exception]) -> Bool[Tensor, "_ _ query key"]:
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise refuse(f"a mask of {mask.dtype} is ambiguous: use booleans, True = may attend")
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if bool(((mask != 0) & ~hidden).any()):
        raise refuse("its mask adds numbers to scores, which is no mask but a bias")
    return ~hidden
