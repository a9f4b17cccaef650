"""Softmax and its normalisation."""

from __future__ import annotations

from math import exp, expm1

from .row import Row, Vector, dot, exponentials, formula


@formula
def softmax(row: Row) -> Vector:
    return row.mix(exponentials(row.scores))


@formula
def softmax_scaled(row: Row) -> Vector:
    return row.mix([row.o["alpha"] * w for w in exponentials(row.scores)])


@formula
def softmax_power(row: Row) -> Vector:
    p = row.o["p"]
    total = sum(exp(s) ** p for s in row.scores) ** (1 / p)
    return row.mix([exp(s) / total for s in row.scores])


@formula
def softmax_off_by_one(row: Row) -> Vector:
    return row.mix(exponentials(row.scores, beside=1))


@formula
def sink_logit(row: Row) -> Vector:
    b = row.p["slot_modules.0.logit"][row.head]
    if row.o["reads_input"]:
        b += dot(row.p["slot_modules.0.weight"][row.head], row.x)
    return row.mix(exponentials(row.scores, beside=exp(b)))


@formula
def clipped_softmax(row: Row) -> Vector:
    gamma, zeta = -0.025 if row.o["gamma"] is None else row.o["gamma"], row.o["zeta"]
    if row.o["alpha"] is not None:
        gamma = -row.o["alpha"] / row.n
    return row.mix([min(max((zeta - gamma) * w + gamma, 0), 1) for w in exponentials(row.scores)])


@formula
def softpick(row: Row) -> Vector:
    largest = max(0, *row.scores)
    total = sum(abs(expm1(s)) for s in row.scores) + row.o["epsilon"] * exp(largest)
    return row.mix([max(expm1(s), 0) / total for s in row.scores])


@formula
def entmax(row: Row) -> Vector:
    """The threshold by bisection."""
    power = row.o["alpha"] - 1
    scaled = [power * s for s in row.scores]

    def weights(threshold: float) -> Vector:
        return [max(s - threshold, 0) ** (1 / power) for s in scaled]

    low, high = max(scaled) - 1, max(scaled)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) > 1 else (low, middle)
    return row.mix(weights(low))


@formula
def stable_mask(row: Row) -> Vector:
    gamma = 2 ** (-8 * (row.head + 1) / row.heads) if row.o["gamma"] == "alibi" else row.o["gamma"]
    later = sum(exp(-gamma * j) for j in range(row.place + 1, row.o["context"] or 2048))  # 2048 without a model
    return row.mix(exponentials(row.scores, beside=later))


@formula
def first_key_logit(row: Row) -> Vector:
    """Where the first token of the row or document is seen at all."""
    logit = row.p["first_key.logit"][row.head]
    return row.mix(exponentials([s + logit * (k == 0) for s, k in zip(row.scores, row.places, strict=True)]))
