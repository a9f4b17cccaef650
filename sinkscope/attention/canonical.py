"""One form for all spellings of a mask, so that what means the same compares and hashes alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from functools import reduce
from itertools import product
from typing import Any, cast

from sinkscope.attention.masks import MASKS, Alone, And, Causal, Document, Full, Mask, Or, Prefix, Window, Without

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
    """Without what follows from the rest; what is hidden in several steps is hidden in one."""
    for kind in (Without, Alone):
        several = [mask for mask in term if isinstance(mask, kind)]
        if len(several) > 1:
            places = tuple(place for mask in several for place in mask.places)
            term = term - frozenset(several) | {kind(places)}
    return frozenset(
        mask for mask in term if not any(_implies(other, mask) and other != mask for other in term) or mask == Causal()
    )


def _smallest(terms: Iterable[Term]) -> list[Term]:
    """The terms that allow something which no other one allows."""
    unique = set(terms)
    return [term for term in unique if not any(_allows(other, term) for other in unique - {term})]


def _allows(wide: Term, narrow: Term) -> bool:
    """Whether everything is allowed by `wide` that `narrow` allows."""
    return all(any(_implies(own, mask) for own in narrow) for mask in wide)


def _implies(one: Mask, other: Mask) -> bool:
    """Whether `other` allows all that `one` does."""
    if one == Window(1):  # a query sees itself and nothing else
        return isinstance(other, Causal | Window | Document | Without | Alone)
    if isinstance(one, Window) and isinstance(other, Window):
        return one.size <= other.size
    if isinstance(one, Prefix) and isinstance(other, Prefix):
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
