"""Other similarities and normalisers."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt

from .row import Row, Vector, dot, formula, logistic, shares


@formula
def sigmoid(row: Row) -> Vector:
    return row.mix([logistic(s + row.o["bias"]) for s in row.scores])


@formula
def sigmoid_normalized(row: Row) -> Vector:
    return row.mix(shares([logistic(s) for s in row.scores]))


@formula
def sigmoid_power(row: Row) -> Vector:
    p, each = row.o["p"], [logistic(s) for s in row.scores]
    return row.mix([w / sum(x**p for x in each) ** (1 / p) for w in each])


@formula
def sigmoid_bias(row: Row) -> Vector:
    return row.mix([logistic(s - log(row.n) + row.o["bias"]) for s in row.scores])


def above_zero(x: float) -> float:
    """elu(x) + 1."""
    return x + 1 if x > 0 else exp(x)


@formula
def elu(row: Row) -> Vector:
    return row.mix([above_zero(s) for s in row.scores])


@formula
def elu_normalized(row: Row) -> Vector:
    return row.mix(shares([above_zero(s) for s in row.scores]))


@formula
def relu(row: Row) -> Vector:
    weights = [max(s, 0) / (row.n if row.o["over_n"] else 1) for s in row.scores]
    return row.mix([w / (sum(weights) + 1e-8) for w in weights] if row.o["normalized"] else weights)


def kernel(row: Row, feature: Callable[[Vector], Vector]) -> Vector:
    """φ(q)·φ(k) / √d."""
    return [dot(feature(row.query), feature(key)) / sqrt(len(row.query)) for key in row.keys]


def bounded(scores: Vector) -> Vector:
    return [s / max(abs(sum(scores)), 1) for s in scores]


def elu_features(x: Vector) -> Vector:
    return [above_zero(channel) for channel in x]


def mlp_features(row: Row) -> Callable[[Vector], Vector]:
    first, second = row.p["similarity.first"], row.p["similarity.second"]
    return lambda x: [dot(line, [max(dot(inner, x), 0) for inner in first]) for line in second]


@formula
def kernel_elu(row: Row) -> Vector:
    return row.mix(kernel(row, elu_features))


@formula
def kernel_elu_normalized(row: Row) -> Vector:
    return row.mix(shares(kernel(row, elu_features)))


@formula
def kernel_identity(row: Row) -> Vector:
    return row.mix(row.scores)


@formula
def kernel_identity_normalized(row: Row) -> Vector:
    return row.mix(bounded(row.scores))


@formula
def kernel_mlp(row: Row) -> Vector:
    return row.mix(kernel(row, mlp_features(row)))


@formula
def kernel_mlp_normalized(row: Row) -> Vector:
    return row.mix(bounded(kernel(row, mlp_features(row))))
