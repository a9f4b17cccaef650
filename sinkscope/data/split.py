"""Which documents are for training and which for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sinkscope.errors import InputError


@dataclass(frozen=True)
class Split:
    """Names of the documents of each part, in the corpus's order."""

    train: tuple[str, ...]
    validation: tuple[str, ...]


def shuffled(names: Iterable[str], seed: int) -> list[str]:
    """Names in an order that only the names and the seed decide: that of sha256(seed, name)."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\n{name}".encode()).digest())


def split_names(names: Sequence[str], share: float, seed: int) -> Split:
    """Give `share` of the documents, at least one and not all, to validation: the first ones of `shuffled`.

    Raises `InputError` for fewer than two documents, since the parts share none.
    """
    if len(names) < 2:
        raise InputError(f"the corpus has {len(names)} document(s); training and validation need at least one each")
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    chosen = set(shuffled(names, seed)[:count])
    return Split(
        train=tuple(name for name in names if name not in chosen),
        validation=tuple(name for name in names if name in chosen),
    )
