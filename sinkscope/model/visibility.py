"""The mask of a forward pass of the lab model: padding, cache, documents, sink tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from sinkscope.attention import Causal, Document, Full, Mask, TokenAxis, Visibility, VisiblePrefix
from sinkscope.attention.masks import And, Or, leaves
from sinkscope.errors import InputError


def causal(mask: Mask) -> Mask:
    """The mask joined with `Causal()` wherever it would show a query a later token; one that does not stays as it is.

    A prefix stays in sight of every token, its own ones included: that is what it means, and those tokens are not to be
    predicted (`longest_prefix`).
    """
    if _looks_back(mask):
        return mask
    if isinstance(mask, Full):
        return Causal()
    if isinstance(mask, Or):
        first, second = causal(mask.first), causal(mask.second)
        return first if first == second else Or(first, second)
    if isinstance(mask, And) and longest_prefix(mask.first):  # so that the prefix stays visible
        return And(causal(mask.first), mask.second)
    if isinstance(mask, And) and longest_prefix(mask.second):
        return And(mask.first, causal(mask.second))
    return And(Causal(), mask)


def longest_prefix(mask: Mask) -> int:
    """The length of the longest prefix in a mask: that many first tokens may see each other; 0 where there is none."""
    return max((leaf.length for leaf in leaves(mask) if isinstance(leaf, VisiblePrefix)), default=0)


def _looks_back(mask: Mask) -> bool:
    """Whether no query sees a later token but those of a prefix."""
    if isinstance(mask, And):
        # An intersection shows no more than either part, a union no less: hence `or` here and `and` below.
        return _looks_back(mask.first) or _looks_back(mask.second)
    if isinstance(mask, Or):
        return _looks_back(mask.first) and _looks_back(mask.second)
    return isinstance(mask, Causal | VisiblePrefix)


def bidirectional(mask: Mask) -> Mask:
    """The mask with `Full` for `Causal`; what has no effect then is dropped, so that kernels need no written mask."""
    if isinstance(mask, Causal):
        return Full()
    if not isinstance(mask, And | Or):
        return mask
    first, second = bidirectional(mask.first), bidirectional(mask.second)
    if isinstance(mask, Or):
        return Full() if Full() in (first, second) else Or(first, second)
    if isinstance(first, Full):
        return second
    return first if isinstance(second, Full) else And(first, second)


def bind(
    mask: Mask,
    queries: int,
    keys: int,
    *,
    sinks: int = 0,
    attention_mask: Tensor | None = None,
    documents: Tensor | None = None,
    is_causal: bool = True,
    device: torch.device | None = None,
) -> Visibility:
    """`mask` over the last `queries` of `keys` tokens, of which the first `sinks` are sink tokens.

    Args:
        mask: The rule.
        queries, keys: Numbers of tokens; sink tokens and cached ones are among the keys.
        sinks: Number of sink tokens.
        attention_mask: (batch, keys − sinks), 0 for padding; None: no padding.
        documents: (batch or 1, keys − sinks), the number of each token's document; None: a row is one document.
        is_causal: Whether a sink token sees only those before it; else all of them, and text.
        device: Of the result, without `attention_mask`.

    Raises `InputError` for documents of another length.
    """
    text = keys - sinks
    if documents is not None and documents.shape[-1] != text:
        raise InputError(
            f"document_ids {tuple(documents.shape)}: expected (batch, {text}), one number for each token so far"
        )
    if documents is None and any(isinstance(leaf, Document) for leaf in leaves(mask)):
        documents = torch.zeros(1, text, dtype=torch.long, device=device)
    if documents is not None:
        # −1 is the number of no document: sink tokens belong to none, and are always real.
        documents = F.pad(documents, (sinks, 0), value=-1)
    if attention_mask is not None:
        attention_mask = F.pad(attention_mask, (sinks, 0), value=1)
    plain = Visibility.of(mask, queries, keys, attention_mask=attention_mask, documents=documents, device=device)
    if not sinks or isinstance(mask, Causal | Full):  # sink tokens come first: these masks are right for them already
        return replace(plain, sinks=sinks)
    return BesideSinks(mask, plain.query, plain.key, is_causal, sinks=sinks)


@dataclass(frozen=True, eq=False)
class BesideSinks(Visibility):
    """A mask of the text, under which the first `sinks` keys are sink tokens that every query sees.

    The mask counts positions in the text. Sink tokens see those before them; in a bidirectional model they see each
    other, and the text as well unless documents would meet there. `further` masks count from the first sink token, as
    measurements do, and hold for all.
    """

    is_causal: bool
    further: Mask | None = None

    def narrowed(self, mask: Mask) -> BesideSinks:
        return replace(self, further=mask if self.further is None else self.further & mask)

    def dense(self, rows: slice | None = None) -> Bool[Tensor, "batch 1 query key"]:
        query, text = self.query if rows is None else self.query.part(rows), self.key.part(slice(self.sinks, None))
        # (batch, query, 1): which queries are sink tokens. In the text's count their positions are negative, for which
        # the mask means nothing: `where` replaces their rows.
        sinking = (query.order < self.sinks)[:, :, None]
        seen = self.mask.visible(_shifted(query, -self.sinks), _shifted(text, -self.sinks))
        seen = torch.where(sinking, torch.full_like(seen, self._sinks_read), seen)
        # (batch, query, sinks). No sink token is ahead of a query of the text.
        ahead = self.key.order[:, None, : self.sinks] > query.order[:, :, None]
        before = ~ahead if self.is_causal else torch.ones_like(ahead)
        # Either may be a batch of one that all samples share.
        batch = max(len(before), len(seen))
        allowed = torch.cat([part.expand(batch, -1, -1) for part in (before, seen)], -1)
        if self.further is not None:
            allowed = allowed & self.further.visible(query, self.key)
        if self.key.valid is not None and query.valid is not None:
            allowed = allowed & self.key.valid[:, None, :] & query.valid[:, :, None]
        return allowed[:, None]

    @property
    def _sinks_read(self) -> bool:
        """Whether sink tokens see the text."""
        return not self.is_causal and not any(isinstance(mask, Document) for mask in leaves(self.mask))


def _shifted(tokens: TokenAxis, by: int) -> TokenAxis:
    return replace(tokens, order=tokens.order + by)
