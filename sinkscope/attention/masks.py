"""Which key a query may attend to: small predicates on token indices that combine with `&` and `|`.

    Causal() & Window(256)          sliding window, as in Mistral
    Causal() | Prefix(5)            prefix language modeling
    Causal() & Document()           packed documents that do not see each other

A mask is a frozen, JSON-able value. `Visibility` (in `visibility.py`) binds it to the tokens at hand.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

import torch
from jaxtyping import Bool, Int
from pydantic import AfterValidator, Field
from torch import Tensor

from sinkscope.attention.pieces import piece
from sinkscope.attention.pieces.opened import OpenTo
from sinkscope.attention.tokens import Tokens
from sinkscope.errors import InputError

Columns = Int[Tensor, "#batch query"]
Span = tuple[Columns, Columns]  # of each query: the first column that it may see, and the one behind the last
Places = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    Field(min_length=1),
    AfterValidator(lambda places: tuple(sorted(set(places)))),  # a set, in one spelling
]


class Combinable:
    """Gives a mask `&` (both must allow) and `|` (either may allow); what masks of other packages derive from.

    `needs_every_key`: of these, as of `normalizers.base.Normalizer`.
    """

    kind: str
    needs_every_key: ClassVar[bool] = True

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        """Which keys each query may attend to, by the tokens' own order and documents."""
        raise NotImplementedError

    def __and__(self, other: Mask) -> And:
        return And(self, _mask(other))

    def __or__(self, other: Mask) -> Or:
        return Or(self, _mask(other))

    def span(self, query: Tokens, key: Tokens) -> Span | None:
        """Columns outside of which no query sees anything; None where that is not known, or is nowhere.

        `key.order` must rise from column to column. Costs O(T log T).
        """
        return None

    def solid(self, query: Tokens, key: Tokens) -> bool:
        """Whether queries see every column inside their span, padding aside; False where that is not known."""
        return False


@piece
class Causal(Combinable):
    """A query sees itself and what came before: k <= q."""

    kind: Literal["causal"] = "causal"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        # By the tokens' own order, not by column: under a cache query 0 is not key 0, and padding shifts each row.
        return key.order[:, None, :] <= query.order[:, :, None]

    def span(self, query: Tokens, key: Tokens) -> Span:
        stop = _columns(key, query.order, right=True)
        return torch.zeros_like(stop), stop

    def solid(self, query: Tokens, key: Tokens) -> bool:
        return True


@piece
class Full(Combinable):
    """Every query sees every key (bidirectional)."""

    kind: Literal["full"] = "full"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        return torch.ones(1, query.count, key.count, dtype=torch.bool, device=key.order.device)


@piece
class Window(Combinable):
    """A query sees keys closer than `size`: |q − k| < size. With `Causal()`: `size` keys, itself included.

    Source: Gu et al. 2025, section 6.
    """

    size: Annotated[int, Field(ge=1)]
    kind: Literal["window"] = "window"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        # Both sides, so that a window also makes sense under `Full()`; `Causal()` takes the future side away.
        return (query.order[:, :, None] - key.order[:, None, :]).abs() < self.size

    def span(self, query: Tokens, key: Tokens) -> Span:
        return (
            _columns(key, query.order - self.size, right=True),
            _columns(key, query.order + self.size, right=False),
        )

    def solid(self, query: Tokens, key: Tokens) -> bool:
        return True


@piece
class Prefix(Combinable):
    """The first `length` tokens of a row are seen by every query: k < length (Gu et al. 2025, section 6)."""

    length: Annotated[int, Field(ge=1)]
    kind: Literal["prefix"] = "prefix"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        return (key.order[:, None, :] < self.length).expand(-1, query.count, -1)

    def span(self, query: Tokens, key: Tokens) -> Span:
        stop = _columns(key, torch.full_like(query.order, self.length), right=False)
        return torch.zeros_like(stop), stop

    def solid(self, query: Tokens, key: Tokens) -> bool:
        return True


@piece
class Document(Combinable):
    """A query sees keys of its own document: doc(k) = doc(q). The tokens must carry document numbers.

    Source: slides of Gu et al. 2025.
    """

    kind: Literal["document"] = "document"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        if query.document is None or key.document is None:
            raise InputError("a document mask needs document numbers: pass `documents` where the mask is bound")
        return query.document[:, :, None] == key.document[:, None, :]

    def span(self, query: Tokens, key: Tokens) -> Span | None:
        if query.document is None or key.document is None:
            return None
        # Stable, so that the columns of a document stay in order: its first and its last are those of its group.
        grouped, column = torch.sort(key.document, dim=-1, stable=True)
        rows = max(len(grouped), len(query.document))
        grouped, column, wanted = (x.expand(rows, -1).contiguous() for x in (grouped, column, query.document))
        start, stop = torch.searchsorted(grouped, wanted), torch.searchsorted(grouped, wanted, right=True)
        first = column.gather(1, start.clamp(max=key.count - 1))
        last = column.gather(1, (stop - 1).clamp(min=0))
        return first.where(start < stop, key.count), (last + 1).where(start < stop, 0)

    def solid(self, query: Tokens, key: Tokens) -> bool:
        """Where no number comes back after another one."""
        return key.document is not None and bool((key.document[:, 1:] >= key.document[:, :-1]).all())


@piece
class Strict(Combinable):
    """A query does not see its own key: k ≠ q. With `Causal()`: k < q, the diagonal masked (Wu & Tu 2024)."""

    kind: Literal["strict"] = "strict"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        return key.order[:, None, :] != query.order[:, :, None]


@piece
class Without(Combinable):
    """No query sees the keys at these positions of its row, except each key's own query: k ∉ places or k = q."""

    places: Places
    kind: Literal["without"] = "without"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        named = _at(key, self.places)[:, None, :]
        # A key's own query keeps it: the row of token 0 would otherwise be empty, and an empty row has no softmax.
        return ~named | (key.order[:, None, :] == query.order[:, :, None])


@piece
class Alone(Combinable):
    """Queries at these positions of their row see only their own key, as its first token does: q ∉ places or k = q."""

    places: Places
    kind: Literal["alone"] = "alone"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        named = _at(query, self.places)[:, :, None]
        return ~named | (key.order[:, None, :] == query.order[:, :, None])


@piece
class And(Combinable):
    """Both masks allow it."""

    first: Mask
    second: Mask
    kind: Literal["and"] = "and"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        return self.first.visible(query, key) & self.second.visible(query, key)

    def span(self, query: Tokens, key: Tokens) -> Span | None:
        one, other = self.first.span(query, key), self.second.span(query, key)
        if one is None or other is None:
            return one or other
        return torch.maximum(one[0], other[0]), torch.minimum(one[1], other[1])

    def solid(self, query: Tokens, key: Tokens) -> bool:
        return self.first.solid(query, key) and self.second.solid(query, key)


@piece
class Or(Combinable):
    """At least one mask allows it."""

    first: Mask
    second: Mask
    kind: Literal["or"] = "or"

    def visible(self, query: Tokens, key: Tokens) -> Bool[Tensor, "batch query key"]:
        return self.first.visible(query, key) | self.second.visible(query, key)

    def span(self, query: Tokens, key: Tokens) -> Span | None:
        one, other = self.first.span(query, key), self.second.span(query, key)
        if one is None or other is None:
            return None
        return torch.minimum(one[0], other[0]), torch.maximum(one[1], other[1])

    def solid(self, query: Tokens, key: Tokens) -> bool:
        """Where both begin in the same column."""
        if not (self.first.solid(query, key) and self.second.solid(query, key)):
            return False
        one, other = self.first.span(query, key), self.second.span(query, key)
        return one is not None and other is not None and torch.equal(*torch.broadcast_tensors(one[0], other[0]))


Own = Causal | Full | Window | Prefix | Document | Strict | Without | Alone | And | Or
Mask = Annotated[Own | Combinable, OpenTo("mask", Own, Combinable)]
MASKS = get_args(Own)


def _mask(other: object) -> Mask:
    if not isinstance(other, Combinable):
        raise InputError(f"a mask combines with a mask such as Window(8), not with a {type(other).__name__}")
    return other


def leaves(mask: Mask) -> list[Mask]:
    """The elementary masks that a combination is made of, left to right."""
    if isinstance(mask, And | Or):
        return [*leaves(mask.first), *leaves(mask.second)]
    return [mask]


def conjuncts(mask: Mask) -> list[Mask]:
    """The masks that must all allow it, left to right."""
    if isinstance(mask, And):
        return [*conjuncts(mask.first), *conjuncts(mask.second)]
    return [mask]


def describe(mask: Mask) -> str:
    """A mask as it would be written in code: `causal & window(16)`."""
    if isinstance(mask, And | Or):
        sign = "&" if isinstance(mask, And) else "|"
        return f"({describe(mask.first)} {sign} {describe(mask.second)})"
    values = [str(getattr(mask, field.name)) for field in fields(cast(Any, mask)) if field.name != "kind"]
    return f"{mask.kind}({', '.join(values)})" if values else mask.kind


def _at(tokens: Tokens, places: Places) -> Bool[Tensor, "batch tokens"]:
    """Which tokens stand at one of these positions of their row."""
    return torch.isin(tokens.order, tokens.order.new_tensor(places))


def _columns(key: Tokens, order: Int[Tensor, "#batch query"], *, right: bool) -> Columns:
    """How many columns stand before each of these places of the row, or up to it where `right`."""
    rows = max(len(key.order), len(order))
    known, wanted = (x.expand(rows, -1).contiguous() for x in (key.order, order))
    return torch.searchsorted(known, wanted, right=right)
