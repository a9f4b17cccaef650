"""Which key a query may attend to: small predicates on token indices that combine with `&` and `|`.

    Causal() & Window(256)          sliding window, as in Mistral
    Causal() | VisiblePrefix(5)     prefix language modeling
    Causal() & Document()           packed documents that do not see each other

A mask is a frozen, JSON-able value. `Visibility` (in `visibility.py`) binds it to the tokens at hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from functools import reduce
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

import torch
from jaxtyping import Bool, Int
from pydantic import AfterValidator, Field
from torch import Tensor

from sinkscope.attention.pieces import OpenTo, piece
from sinkscope.errors import InputError


@dataclass(frozen=True, eq=False)
class TokenAxis:
    """The tokens on one side of an attention map.

    `order`: index of the token in its own row, counted in real tokens from 0 (it orders tokens; rotary positions may
    differ), increasing from column to column; left padding is negative. `document`: number of the document the token
    belongs to. `valid`: False for padding; None means that every token is real. The batch dimension may be 1 if all
    rows agree.
    """

    order: Int[Tensor, "#batch tokens"]
    document: Int[Tensor, "#batch tokens"] | None = None
    valid: Bool[Tensor, "#batch tokens"] | None = None

    @classmethod
    def plain(cls, length: int, *, start: int = 0, device: torch.device | None = None) -> TokenAxis:
        """`length` real tokens, the first with index `start`."""
        return cls(torch.arange(start, start + length, device=device)[None])

    @classmethod
    def padded(cls, attention_mask: Tensor, document: Int[Tensor, "batch tokens"] | None = None) -> TokenAxis:
        """From a transformers attention mask: 1 for real tokens, 0 for padding, on either side."""
        real = attention_mask.bool()
        # Counting real tokens makes a padded row equal to the same row without padding, on whichever side it is padded.
        return cls(real.long().cumsum(-1) - 1, document, real)

    @property
    def count(self) -> int:
        return self.order.shape[-1]

    @property
    def samples(self) -> int:
        """How many samples it tells apart; 1 if all rows agree."""
        return max(len(values) for values in (self.order, self.document, self.valid) if values is not None)

    def within_documents(self, apart: Bool[Tensor, "#batch tokens"] | None = None) -> Int[Tensor, "#batch tokens"]:
        """Index of each real token among those of its document, from 0; the document need not be contiguous.

        Padding, and tokens marked in `apart`, belong to no document; their own indices are meaningless.
        """
        if self.document is None:
            return self.order
        order, document = torch.broadcast_tensors(self.order, self.document)
        for outside in (apart, None if self.valid is None else ~self.valid):
            if outside is not None:
                # A number that no document has, so that tokens outside never advance a document's count.
                document = torch.where(outside, self.document.min() - 1, document)
        # Stable, so that tokens of one document keep their order; O(T log T) instead of a T × T comparison.
        grouped, index = torch.sort(document, dim=-1, stable=True)
        count = torch.arange(self.count, device=order.device).expand_as(index)
        # Index in a document = index in sorted order minus that of the document's first, which cummax carries along.
        starts = torch.ones_like(grouped, dtype=torch.bool)
        starts[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
        first = count.masked_fill(~starts, 0).cummax(-1).values
        # `index` permutes each row, so the scatter undoes the sort and leaves no element unwritten.
        return torch.empty_like(index).scatter(-1, index, count - first)

    def restarted(self, sinks: int = 0) -> Int[Tensor, "#batch tokens"]:
        """Index of each real token among those of its document, from 0; −n … −1 for the first n = `sinks`.

        Tokens of one document need not be neighbors: a document mask lets them see each other anywhere.
        """
        if self.document is None:
            return self.order - sinks
        outside = self.order < sinks  # sink tokens, and padding on the left
        if self.valid is not None:
            outside = outside | ~self.valid
        return torch.where(outside, self.order - sinks, self.within_documents(outside))

    def part(self, columns: slice, samples: slice = slice(None)) -> TokenAxis:
        """The tokens of a slice for some of the samples; arrays shared by all samples stay shared."""
        parts: list[Any] = []
        for values in (self.order, self.document, self.valid):
            rows = samples if values is not None and len(values) > 1 else slice(None)
            parts.append(None if values is None else values[rows, columns])
        return TokenAxis(*parts)


Columns = Int[Tensor, "#batch query"]
Span = tuple[Columns, Columns]  # per query: the first column that it may see, and the one after the last
Places = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    Field(min_length=1),
    AfterValidator(lambda places: tuple(sorted(set(places)))),  # a set, in canonical order
]


class Combinable:
    """Gives a mask `&` (both must allow) and `|` (either may allow); the base class for masks of other packages.
    `needs_every_key`: as in `normalizers.base.Normalizer`.
    """

    kind: str
    needs_every_key: ClassVar[bool] = True

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        """Which keys each query may attend to, by the tokens' own order and documents."""
        raise NotImplementedError

    def __and__(self, other: Mask) -> And:
        return And(self, _mask(other))

    def __or__(self, other: Mask) -> Or:
        return Or(self, _mask(other))

    def span(self, query: TokenAxis, key: TokenAxis) -> Span | None:
        """Columns outside of which no query sees anything; None if unknown or unbounded.

        `key.order` must rise from column to column. Costs O(T log T).
        """
        return None

    def solid(self, query: TokenAxis, key: TokenAxis) -> bool:
        """Whether queries see every column inside their span except padding; False if unknown."""
        return False


@piece
class Causal(Combinable):
    """A query sees itself and what came before: k <= q."""

    kind: Literal["causal"] = "causal"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        # By the tokens' own order, not by column: under a cache query 0 is not key 0, and padding shifts each row.
        return key.order[:, None, :] <= query.order[:, :, None]

    def span(self, query: TokenAxis, key: TokenAxis) -> Span:
        # Right padding repeats the order of the last real token and is counted too; `Visibility._spans` cuts it off.
        stop = _columns(key, query.order, right=True)
        return torch.zeros_like(stop), stop

    def solid(self, query: TokenAxis, key: TokenAxis) -> bool:
        return True


@piece
class Full(Combinable):
    """Every query sees every key (bidirectional)."""

    kind: Literal["full"] = "full"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        return torch.ones(1, query.count, key.count, dtype=torch.bool, device=key.order.device)


@piece
class Window(Combinable):
    """A query sees keys closer than `size`: |q − k| < size. With `Causal()`: `size` keys, itself included.

    Source: Gu et al. 2025, section 6.
    """

    size: Annotated[int, Field(ge=1)]
    kind: Literal["window"] = "window"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        # Both sides, so that a window also makes sense under `Full()`; `Causal()` takes the future side away.
        return (query.order[:, :, None] - key.order[:, None, :]).abs() < self.size

    def span(self, query: TokenAxis, key: TokenAxis) -> Span:
        return (
            # The first column with order > q − size, and the first with order ≥ q + size.
            _columns(key, query.order - self.size, right=True),
            _columns(key, query.order + self.size, right=False),
        )

    def solid(self, query: TokenAxis, key: TokenAxis) -> bool:
        return True


@piece
class VisiblePrefix(Combinable):
    """The first `length` tokens of a row are seen by every query: k < length (Gu et al. 2025, section 6)."""

    length: Annotated[int, Field(ge=1)]
    kind: Literal["prefix"] = "prefix"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        # Left padding has order −1 and passes too: `Visibility.dense` hides padding, whatever the mask says.
        return (key.order[:, None, :] < self.length).expand(-1, query.count, -1)

    def span(self, query: TokenAxis, key: TokenAxis) -> Span:
        stop = _columns(key, torch.full_like(query.order, self.length), right=False)
        return torch.zeros_like(stop), stop

    def solid(self, query: TokenAxis, key: TokenAxis) -> bool:
        return True


@piece
class Document(Combinable):
    """A query sees keys of its own document: doc(k) = doc(q). The tokens must carry document numbers.

    Source: slides of Gu et al. 2025.
    """

    kind: Literal["document"] = "document"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        if query.document is None or key.document is None:
            raise InputError("a document mask needs document numbers: pass `documents` where the mask is bound")
        return query.document[:, :, None] == key.document[:, None, :]

    def span(self, query: TokenAxis, key: TokenAxis) -> Span | None:
        if query.document is None or key.document is None:
            return None
        # Stable, so that the columns of a document stay in order: its first and its last are those of its group.
        grouped, column = torch.sort(key.document, dim=-1, stable=True)
        rows = max(len(grouped), len(query.document))
        grouped, column, wanted = (x.expand(rows, -1).contiguous() for x in (grouped, column, query.document))
        start, stop = torch.searchsorted(grouped, wanted), torch.searchsorted(grouped, wanted, right=True)
        # A document without keys may be searched past either end: clamped for `gather`, then made an empty span.
        first = column.gather(1, start.clamp(max=key.count - 1))
        last = column.gather(1, (stop - 1).clamp(min=0))
        return first.where(start < stop, key.count), (last + 1).where(start < stop, 0)

    def solid(self, query: TokenAxis, key: TokenAxis) -> bool:
        """True if each document is contiguous."""
        # Contiguous documents whose numbers fall are missed, which costs a fast path, not correctness.
        return key.document is not None and bool((key.document[:, 1:] >= key.document[:, :-1]).all())


@piece
class Strict(Combinable):
    """A query does not see its own key: k ≠ q. With `Causal()`: k < q, the diagonal masked (Wu & Tu 2024)."""

    kind: Literal["strict"] = "strict"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        return key.order[:, None, :] != query.order[:, :, None]


@piece
class Without(Combinable):
    """No query sees the keys at these positions of its row, except each key's own query: k ∉ places or k = q."""

    places: Places
    kind: Literal["without"] = "without"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        named = _at(key, self.places)[:, None, :]
        # A key's own query keeps it: the row of token 0 would otherwise be empty, and an empty row has no softmax.
        return ~named | (key.order[:, None, :] == query.order[:, :, None])


@piece
class Alone(Combinable):
    """Queries at these positions of their row see only their own key, as its first token does: q ∉ places or k = q."""

    places: Places
    kind: Literal["alone"] = "alone"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        named = _at(query, self.places)[:, :, None]
        return ~named | (key.order[:, None, :] == query.order[:, :, None])


@piece
class And(Combinable):
    """Both masks allow it."""

    first: Mask
    second: Mask
    kind: Literal["and"] = "and"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        return self.first.visible(query, key) & self.second.visible(query, key)

    def span(self, query: TokenAxis, key: TokenAxis) -> Span | None:
        one, other = self.first.span(query, key), self.second.span(query, key)
        if one is None or other is None:
            # `And` only takes away, so the bound of one mask holds for both.
            return one or other
        return torch.maximum(one[0], other[0]), torch.minimum(one[1], other[1])

    def solid(self, query: TokenAxis, key: TokenAxis) -> bool:
        # The intersection of two intervals is an interval.
        return self.first.solid(query, key) and self.second.solid(query, key)


@piece
class Or(Combinable):
    """At least one mask allows it."""

    first: Mask
    second: Mask
    kind: Literal["or"] = "or"

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        return self.first.visible(query, key) | self.second.visible(query, key)

    def span(self, query: TokenAxis, key: TokenAxis) -> Span | None:
        one, other = self.first.span(query, key), self.second.span(query, key)
        if one is None or other is None:
            return None
        # The hull: columns between two separate spans are inside it, though hidden.
        return torch.minimum(one[0], other[0]), torch.maximum(one[1], other[1])

    def solid(self, query: TokenAxis, key: TokenAxis) -> bool:
        """True if both spans begin in the same column."""
        if not (self.first.solid(query, key) and self.second.solid(query, key)):
            return False
        one, other = self.first.span(query, key), self.second.span(query, key)
        # With a common start one span contains the other, so their hull has no gap.
        return one is not None and other is not None and torch.equal(*torch.broadcast_tensors(one[0], other[0]))


BuiltIn = Causal | Full | Window | VisiblePrefix | Document | Strict | Without | Alone | And | Or
Mask = Annotated[BuiltIn | Combinable, OpenTo("mask", BuiltIn, Combinable)]
MASKS = get_args(BuiltIn)


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


def separates_documents(mask: Mask) -> bool:
    """Whether no query sees a key of another document.

    A visible prefix joined by `|` lets every document see the first one, so then they count as one row.
    """
    if isinstance(mask, And):
        return separates_documents(mask.first) or separates_documents(mask.second)
    if isinstance(mask, Or):
        return separates_documents(mask.first) and separates_documents(mask.second)
    return isinstance(mask, Document)


def describe(mask: Mask) -> str:
    """A mask as it would be written in code: `causal & window(16)`."""
    if isinstance(mask, And | Or):
        sign = "&" if isinstance(mask, And) else "|"
        return f"({describe(mask.first)} {sign} {describe(mask.second)})"
    values = [str(getattr(mask, field.name)) for field in fields(cast(Any, mask)) if field.name != "kind"]
    return f"{mask.kind}({', '.join(values)})" if values else mask.kind


def _at(tokens: TokenAxis, places: Places) -> Bool[Tensor, "batch tokens"]:
    """Which tokens stand at one of these positions of their row."""
    return torch.isin(tokens.order, tokens.order.new_tensor(places))


def _columns(key: TokenAxis, order: Int[Tensor, "#batch query"], *, right: bool) -> Columns:
    """Number of columns before each of these places of the row; including the place if `right`."""
    rows = max(len(key.order), len(order))
    # searchsorted needs equal leading dimensions, and warns about the strides that `expand` leaves.
    known, wanted = (x.expand(rows, -1).contiguous() for x in (key.order, order))
    return torch.searchsorted(known, wanted, right=right)


Term = frozenset[Any]  # elementary masks that must all allow it; empty: everything is allowed


def canonical(mask: Mask) -> Mask:
    """The mask that allows the same, written in one way: `Full() & Window(4) & Causal()` is `Causal() & Window(4)`.

    No elementary mask forbids what a larger one of its kind allows, so every combination is the "or" of its smallest
    sets of elementary masks, which are unique; what all of these share is written once, in front.
    """
    terms = _smallest(map(_reduced, _terms(mask)))
    shared = frozenset.intersection(*terms)
    rests = sorted((sorted(term - shared, key=_rank) for term in terms), key=lambda rest: [*map(_rank, rest)])
    either = [reduce(And, rest) for rest in rests if rest]
    parts = [*sorted(shared, key=_rank), *([reduce(Or, either)] if either else [])]
    return reduce(And, parts) if parts else Full()


def _terms(mask: Mask) -> list[Term]:
    """The mask as an "or" of "and"s."""
    if isinstance(mask, Or):
        return [*_terms(mask.first), *_terms(mask.second)]
    if isinstance(mask, And):
        return [one | other for one, other in product(_terms(mask.first), _terms(mask.second))]
    if isinstance(mask, Full):
        return [frozenset()]
    return [frozenset({Causal(), mask}) if mask == Window(1) else frozenset({mask})]  # only itself: nothing later


def _reduced(term: Term) -> Term:
    """The term without redundant masks; several masks of hidden positions become one."""
    for kind in (Without, Alone):
        several = [mask for mask in term if isinstance(mask, kind)]
        if len(several) > 1:
            places = tuple(place for mask in several for place in mask.places)
            term = term - frozenset(several) | {kind(places)}
    # `Causal` stays although `Window(1)` implies it: bands and fused kernels are recognized by it.
    return frozenset(
        mask for mask in term if not any(_implies(other, mask) and other != mask for other in term) or mask == Causal()
    )


def _smallest(terms: Iterable[Term]) -> list[Term]:
    """The terms that are not contained in another one."""
    unique = set(terms)
    return [term for term in unique if not any(_allows(other, term) for other in unique - {term})]


def _allows(wide: Term, narrow: Term) -> bool:
    """Whether `wide` allows everything that `narrow` allows."""
    return all(any(_implies(term, mask) for term in narrow) for mask in wide)


def _implies(one: Mask, other: Mask) -> bool:
    """Whether `other` allows all that `one` does."""
    if one == Window(1):  # a query sees itself and nothing else
        return isinstance(other, Causal | Window | Document | Without | Alone)
    if isinstance(one, Window) and isinstance(other, Window):
        return one.size <= other.size
    if isinstance(one, VisiblePrefix) and isinstance(other, VisiblePrefix):
        return one.length <= other.length
    if isinstance(one, Without) and isinstance(other, Without):
        return set(one.places) >= set(other.places)
    if isinstance(one, Alone) and isinstance(other, Alone):
        return set(one.places) >= set(other.places)
    return one == other


def _rank(mask: Mask) -> tuple[int, str, Any]:
    """The package's own masks in their order, then others by name."""
    if type(mask) in MASKS:
        return MASKS.index(type(mask)), "", astuple(cast(Any, mask))
    return len(MASKS), mask.kind, astuple(cast(Any, mask))
