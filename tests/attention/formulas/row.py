"""What a formula is given, and what it is written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

Vector = list[float]


@dataclass(frozen=True)
class Row:
    """One query of one head and the keys that it sees, oldest first.

    `own`: the query's own value. `place`, `places`: of the query and of these keys in their document, from 0. `x`: the
    block's input at the query; `xs`: at these keys; `between`: for each of these keys, at the tokens after it up to the
    query (or the other way round). `heads`, `kv_heads`: how many; `head`, `group`: which. `p`: parameters. `o`:
    options.
    """

    query: Vector
    own: Vector
    keys: list[Vector]
    values: list[Vector]
    place: int
    places: list[int]
    x: Vector
    xs: list[Vector]
    between: list[list[Vector]]
    head: int
    heads: int
    group: int
    kv_heads: int
    p: dict[str, Any]
    o: dict[str, Any]

    @property
    def n(self) -> int:
        return len(self.keys)

    @property
    def scores(self) -> Vector:
        return [self.score(key) for key in self.keys]

    def score(self, key: Vector) -> float:
        return dot(self.query, key) / sqrt(len(self.query))

    def mix(self, weights: Sequence[float]) -> Vector:
        """Σ w v."""
        return mix(weights, self.values)


FORMULAS: dict[str, Callable[[Row], Vector]] = {}


def formula(function: Callable[[Row], Vector]) -> Callable[[Row], Vector]:
    FORMULAS[function.__name__] = function
    return function


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def mix(weights: Sequence[float], vectors: list[Vector]) -> Vector:
    return [dot(list(weights), list(channel)) for channel in zip(*vectors, strict=True)]


def times(factor: float, vector: Vector) -> Vector:
    return [factor * x for x in vector]


def logistic(x: float) -> float:
    return 1 / (1 + exp(-x))


def exponentials(scores: Vector, beside: float = 0.0) -> Vector:
    """exp(s) / (Σ exp(s) + beside)."""
    total = sum(exp(s) for s in scores) + beside
    return [exp(s) / total for s in scores]


def shares(weights: Vector) -> Vector:
    return [w / sum(weights) for w in weights]
