"""A learned logit on the first token of a row."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.attention.masks import separates_documents
from sinkscope.attention.pieces import Learned, Sizes, piece
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError


@piece
class FirstKeyLogit:
    """s_tk ← s_tk + b_h where k is the first token of its row, b_h learned per query head, starting at `initial`.

    A sink that stays in the sequence: it moves mass to a token, with that token's value, where a `LogitSlot` takes mass
    away from all tokens. Sink tokens come before the first token of their row. A query that does not see the first
    token, because of a window, has no sink. Under a document mask every document has a first token. Added after
    scaling, as other logits are. Source: the vision encoder of MiMo-V2.5 (Xiaomi 2026), in layers whose queries see 64
    patches on either side; which of the two sinks a model was trained with is not visible in its parameters, whose
    shape is the same.
    """

    initial: float = 0.0
    kind: Literal["first_key_logit"] = "first_key_logit"

    def build(self, sizes: Sizes) -> FirstKeyModule:
        return FirstKeyModule(sizes.heads, self.initial)


class FirstKeyModule(Learned):
    """The logits, and how they enter a dot product."""

    def __init__(self, heads: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.logit = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.logit, self.initial)

    def forward(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key dim"],
        visibility: Visibility,
        scaling: float,
    ) -> tuple[Float[Tensor, "batch heads query wider"], Float[Tensor, "batch kv_heads key wider"]]:
        """One more channel each: scaling · [q, b]·[k, 1/scaling] = scaling · q·k + b on the first key, so that every
        path which knows dot products is exact."""
        logit = self.logit.to(query.dtype)[None, :, None, None].expand(*query.shape[:3], 1)
        marked = first_keys(visibility)[:, None, :, None].to(key.dtype) / scaling
        return torch.cat([query, logit], -1), torch.cat([key, marked.expand(*key.shape[:3], 1)], -1)


def first_keys(visibility: Visibility) -> Bool[Tensor, "#batch key"]:
    """Which keys are the first token of their row, or of their document where documents do not see each other.

    Raises `InputError` for a mask without a rule.
    """
    if visibility.rule is None:
        raise InputError("a first key's logit: a boolean mask does not say where a row begins, so pass a mask value")
    visibility = visibility.rule
    tokens, sinks = visibility.key, visibility.sinks
    first = (tokens.restarted(sinks) if separates_documents(visibility.mask) else tokens.order - sinks) == 0
    # Padding can have index 0 too: right padding repeats the index of the last real token.
    return first if tokens.valid is None else first & tokens.valid
