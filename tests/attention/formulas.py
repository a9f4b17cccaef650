"""Every line of the catalogue, one query at a time, in plain numbers and loops: written from the formulas.

A line is a function of a `Row` that returns the output of its query. To add one: `@formula` over a function with the
name of the line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, expm1, log, sqrt
from typing import Any

Vector = list[float]


@dataclass(frozen=True)
class Row:
    """One query of one head and the keys that it sees, oldest first.

    `place`, `places`: of the query and of these keys in their document, from 0. `x`: the block's input at the query;
    `xs`: at these keys; `between`: for each of these keys, at the tokens after it up to the query (or the other way
    round). `heads`, `kv_heads`: how many; `head`, `group`: which. `p`: parameters. `o`: options.
    """

    query: Vector
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
    gamma, zeta = row.o["gamma"], row.o["zeta"]
    if row.o["alpha"] is not None:
        gamma = -row.o["alpha"] / row.n
    return row.mix([min(max((zeta - gamma) * w + gamma, 0), 1) for w in exponentials(row.scores)])


@formula
def softpick(row: Row) -> Vector:
    largest = max(0, *row.scores)
    total = sum(abs(expm1(s)) for s in row.scores) + row.o["epsilon"] * exp(largest)
    return row.mix([max(expm1(s), 0) / total for s in row.scores])


@formula
def stable_mask(row: Row) -> Vector:
    gamma = 2 ** (-8 * (row.head + 1) / row.heads) if row.o["gamma"] == "alibi" else row.o["gamma"]
    later = sum(exp(-gamma * j) for j in range(row.place + 1, row.o["context"] or 2048))  # 2048 without a model
    return row.mix(exponentials(row.scores, beside=later))


@formula
def sigmoid(row: Row) -> Vector:
    return row.mix([logistic(s + row.o["bias"]) for s in row.scores])


@formula
def sigmoid_normalized(row: Row) -> Vector:
    return row.mix(shares([logistic(s) for s in row.scores]))


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
def gated_head(row: Row) -> Vector:
    score = row.p["output_modules.0.bias"][row.head]
    if row.o["reads"] != "nothing":
        width = len(row.x) // row.heads
        read = row.x if row.o["reads"] == "all" else row.x[row.head * width : (row.head + 1) * width]
        if row.o["mlp_width"] is not None:
            read = [max(dot(line, read), 0) for line in row.p["output_modules.0.inner"][row.head]]
            assert len(read) == row.o["mlp_width"]
        score += dot(row.p["output_modules.0.weight"][row.head], read)
    return times(logistic(score), softmax(row))


@formula
def gated_elementwise(row: Row) -> Vector:
    output = softmax(row)
    lines = range(row.head * len(output), (row.head + 1) * len(output))
    weight, bias = row.p["output_modules.0.weight"], row.p["output_modules.0.bias"]
    return [y * logistic(dot(weight[line], row.x) + bias[line]) for y, line in zip(output, lines, strict=True)]


@formula
def gated_value(row: Row) -> Vector:
    weight, bias = row.p["value_gate.weight"], row.p["value_gate.bias"]
    per_head = len(weight) // row.kv_heads
    assert per_head == (1 if row.o["per_head"] else len(row.query))

    def gated(value: Vector, x: Vector) -> Vector:
        lines = [row.group * per_head + (0 if row.o["per_head"] else channel) for channel in range(len(value))]
        return [v * logistic(dot(weight[line], x) + bias[line]) for v, line in zip(value, lines, strict=True)]

    values = [gated(value, x) for value, x in zip(row.values, row.xs, strict=True)]
    return mix(exponentials(row.scores), values)


@formula
def qk_norm(row: Row) -> Vector:
    def norm(x: Vector, gain: Vector) -> Vector:
        mean = sum(x) / len(x) if row.o["norm"] == "layernorm" else 0
        size = sqrt(sum((c - mean) ** 2 for c in x) / len(x) + 1e-6)
        return [g * (c - mean) / size for c, g in zip(x, gain, strict=True)]

    query = norm(row.query, row.p["query_key.query_gain"])
    keys = [norm(key, row.p["query_key.key_gain"]) for key in row.keys]
    return row.mix(exponentials([dot(query, key) / sqrt(len(query)) for key in keys]))


@formula
def scalable_softmax(row: Row) -> Vector:
    sharpness = row.p["temperature.scale"][row.head] * log(row.n)
    return row.mix(exponentials([sharpness * s for s in row.scores]))


@formula
def stick_breaking(row: Row) -> Vector:
    left, weights = 1.0, []
    for s in reversed(row.scores):
        weights.append(left * logistic(s))
        left *= 1 - logistic(s)
    return row.mix(weights[::-1])


@formula
def forgetting_gate(row: Row) -> Vector:
    weight, bias = row.p["decay.weight"][row.head], row.p["decay.bias"][row.head]
    kept = [sum(log(logistic(dot(weight, x) + bias)) for x in between) for between in row.between]
    return row.mix(exponentials([s + f for s, f in zip(row.scores, kept, strict=True)]))


@formula
def differential(row: Row) -> Vector:
    d = len(row.query)
    channels = [[*range(d // 4), *range(d // 2, 3 * d // 4)], [*range(d // 4, d // 2), *range(3 * d // 4, d)]]

    def weights(half: list[int]) -> Vector:
        return exponentials([sum(row.query[c] * key[c] for c in half) / sqrt(d / 2) for key in row.keys])

    start = 0.2 if row.o["lambda_init"] is None else row.o["lambda_init"]  # 0.8 − 0.6 exp(0): the first layer
    v = row.p["difference.vectors"]
    factor = exp(dot(v[0], v[1])) - exp(dot(v[2], v[3])) + start
    first, second = (weights(half) for half in channels)
    output = row.mix([a - factor * b for a, b in zip(first, second, strict=True)])
    size = sqrt(sum(y * y for y in output) / d + 1e-5)
    return [(1 - start) * g * y / size for y, g in zip(output, row.p["difference.gain"], strict=True)]
