"""Keys and values that are no tokens."""

from __future__ import annotations

from math import sqrt

from .row import Row, Vector, dot, exponentials, formula, mix
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


@formula
def latent_sinks(row: Row) -> Vector:
    learned = {name: row.p[f"slot_modules.0.{name}"] for name in ("latent", "gain", "key_map", "value_map")}
    assert len(learned["latent"]) == row.o["count"]
    assert len(learned["gain"]) == (row.o["rank"] or 4 * len(row.query))
    d = len(row.query)
    lines = slice(row.group * d, (row.group + 1) * d)
    keys, values = [], []
    for latent in learned["latent"]:
        size = sqrt(sum(c * c for c in latent) / len(latent) + 1e-6)
        normed = [g * c / size for g, c in zip(learned["gain"], latent, strict=True)]
        keys.append([dot(line, normed) for line in learned["key_map"][lines]])
        values.append([dot(line, normed) for line in learned["value_map"][lines]])
    weights = exponentials([*map(row.score, keys), *row.scores])
    return mix(weights, [*values, *row.values])
