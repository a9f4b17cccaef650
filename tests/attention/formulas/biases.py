"""Keys and values that are no tokens."""

from __future__ import annotations

from math import sqrt

from .row import Row, Vector, exponentials, formula, mix
from .softmaxes import softmax


def with_extra_key(row: Row, key: Vector, value: Vector | None = None) -> Vector:
    """Softmax over a further key and the tokens; without a value it carries zeros."""
    weights = exponentials([row.score(key), *row.scores])
    return mix(weights, [value or [0.0] * len(key), *row.values])


@formula
def kv_bias(row: Row) -> Vector:
    return with_extra_key(row, row.p["slot_modules.0.key"][row.group], row.p["slot_modules.0.value"][row.group])


@formula
def kv_bias_shared(row: Row) -> Vector:
    return with_extra_key(row, row.p["slot_modules.0.key"][0], row.p["slot_modules.0.value"][0])


@formula
def k_bias(row: Row) -> Vector:
    return with_extra_key(row, row.p["slot_modules.0.key"][row.group])


@formula
def k_bias_shared(row: Row) -> Vector:
    return with_extra_key(row, row.p["slot_modules.0.key"][0])


@formula
def k_bias_fixed_v(row: Row) -> Vector:
    d, m = len(row.query), row.o["norm"]
    value = [m / sqrt(d)] * d if row.o["direction"] == "uniform" else [m] + [0.0] * (d - 1)
    return with_extra_key(row, row.p["slot_modules.0.key"][row.group], value)


@formula
def k_bias_lowrank(row: Row) -> Vector:
    learned = row.p["slot_modules.0.key"][row.group]
    assert len(learned) == row.o["d_a"]
    return with_extra_key(row, learned + [0.0] * (len(row.query) - len(learned)))


@formula
def v_bias(row: Row) -> Vector:
    bias = row.p["output_modules.0.value"][row.head]
    return [y + b for y, b in zip(softmax(row), bias, strict=True)]
