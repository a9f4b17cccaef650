"""Gates, and what changes queries, keys and scores."""

from __future__ import annotations

from math import exp, log, sqrt

from .row import Row, Vector, dot, exponentials, formula, logistic, mix, times
from .softmaxes import softmax


@formula
def gated_head(row: Row) -> Vector:
    score = row.p["output_modules.0.bias"][row.head]
    if row.o["reads"] != "nothing":
        width = len(row.x) // row.heads
        read = row.x if row.o["reads"] == "all" else row.x[row.head * width : (row.head + 1) * width]
        if isinstance(row.o["reads"], int):
            read = row.x[: row.o["reads"]]
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
def gated_by_value(row: Row) -> Vector:
    place = "value_gate" if row.o["at"] == "value" else "output_modules.0"
    head = row.group if row.o["at"] == "value" else row.head
    weight, bias = row.p[f"{place}.weight"][head], row.p[f"{place}.bias"][head]
    if row.o["at"] == "output":
        return times(logistic(dot(weight, row.own) + bias), softmax(row))
    values = [times(logistic(dot(weight, value) + bias), value) for value in row.values]
    return mix(exponentials(row.scores), values)


@formula
def value_gradient(row: Row) -> Vector:
    return softmax(row)


@formula
def head_norm(row: Row) -> Vector:
    output = softmax(row)
    size = sqrt(sum(y * y for y in output) / len(output) + 1e-6)
    return [g * y / size for y, g in zip(output, row.p["output_modules.0.gain"][row.head], strict=True)]


@formula
def cosine(row: Row) -> Vector:
    scale = row.p["query_key.scale"][row.head]
    cosines = [dot(row.query, key) / sqrt(dot(row.query, row.query) * dot(key, key)) for key in row.keys]
    return row.mix(exponentials([scale * c for c in cosines]))


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


@formula
def exclusive(row: Row) -> Vector:
    output = softmax(row)
    along = dot(output, row.own) / dot(row.own, row.own)
    return [y - along * v for y, v in zip(output, row.own, strict=True)]
