"""The least entropy that logits of a given spread allow. Source: Zhai et al. 2023, Theorem 3.1."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.measurement import AttentionEntropy, measure
from sinkscope.statistics.claims import CaseValue, EachWithin
from sinkscope_replication.theory import closed_forms as closed
from sinkscope_replication.theory.check import ROUNDING, STORED, check
from sinkscope_replication.theory.subjects import Build, gap, lab, look, ordinary, row_of_weights, weights_of

GOLDEN = {0.0: 4.158883, 1.0: 4.143699, 2.0: 4.041087, 4.0: 2.878547, 8.0: 0.176499, 16.0: 0.000107}
COUNTS = (2, 3, 8, 64, 200)
SCALES = (0.0, 0.01, 0.3, 1.0, 3.0, 10.0)
DRAWS = 20


def entropy(weights: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows"]:
    """−Σ w log w in nats."""
    return torch.special.entr(weights).sum(-1)


def bound_is() -> Iterator[CaseValue]:
    """|bound − reference| at n = 64."""
    for spread, value in GOLDEN.items():
        yield CaseValue(f"σ = {spread:g}", closed.least_entropy(spread, 64) - value)


def falls_below() -> Iterator[CaseValue]:
    """How far the entropy of softmax rows over random logits falls below the bound, the largest of several draws."""
    generator = torch.Generator().manual_seed(3)
    for count in COUNTS:
        for scale in SCALES:
            logits = scale * torch.randn(DRAWS, count, generator=generator, dtype=torch.float64)
            spreads = (logits - logits.mean(-1, keepdim=True)).norm(dim=-1)
            bounds = torch.tensor(
                [closed.least_entropy(spread, count) for spread in spreads.tolist()], dtype=torch.float64
            )
            short = bounds - entropy(weights_of("softmax", logits))
            yield CaseValue(f"n = {count}, logits × {scale:g}", float(short.clamp(min=0).max()))


def attained() -> Iterator[CaseValue]:
    """|entropy − bound| of one logit above n − 1 equal ones."""
    for count in COUNTS:
        for height in (0.5, 3.0, 9.0):
            logits = [height, *[0.0] * (count - 1)]
            spread = height * ((count - 1) / count) ** 0.5
            reached = float(entropy(row_of_weights("softmax", logits)))
            yield CaseValue(f"n = {count}, height {height:g}", reached - closed.least_entropy(spread, count))


def measured_below(build: Build = lab) -> Iterator[CaseValue]:
    """Largest measured bound − measured entropy over samples, layers and heads, where positive."""
    for attention in ("softmax", "softmax_off_by_one", "sink_logit", "k_bias"):
        data = measure(build(attention=attention), ordinary(64, samples=4), [AttentionEntropy()]).data
        short = (data["entropy_bound"] - data["attention_entropy"]).clip(min=0)
        yield CaseValue(f"{attention}, T = 64", float(short.max()))


def measured_is(build: Build = lab) -> Iterator[CaseValue]:
    """|measured − naive| of entropy and bound, the naive ones from the weights themselves, row by row."""
    model, ids = build(), ordinary(48)
    data = measure(model, ids, [AttentionEntropy()]).data
    weights = look(model, ids).weights
    bounds = torch.zeros(weights.shape[:3], dtype=torch.float64)
    for t in range(1, 48):
        logits = weights[:, :, t, : t + 1].log()
        spreads = (logits - logits.mean(-1, keepdim=True)).norm(dim=-1)
        bounds[:, :, t] = torch.tensor(
            [[closed.least_entropy(spread, t + 1) for spread in row] for row in spreads.tolist()]
        )
    for name, naive in (("attention_entropy", entropy(weights)), ("entropy_bound", bounds)):
        yield CaseValue(name, gap(torch.from_numpy(data[name].values[0]).double(), naive.mean(-1)))


SOURCE = "Zhai et al. 2023, Theorem 3.1"

CHECKS = (
    check(
        "the entropy bound in numbers",
        "at n = 64 and σ = 0, 1, 2, 4, 8, 16: 4.158883, 4.143699, 4.041087, 2.878547, .176499, .000107 nats",
        "Zhai et al. 2023, Theorem 3.1; computed independently",
        STORED,
        bound_is,
    ),
    check(
        "no row falls below the bound",
        f"Ent ≥ log(1 + (n−1) b) + σ √(n(n−1)) b / (1 + (n−1) b), {DRAWS} random rows for each n and scale",
        SOURCE,
        ROUNDING,
        falls_below,
    ),
    check(
        "the bound is attained",
        "one logit above n − 1 equal ones has exactly the least entropy",
        SOURCE,
        ROUNDING,
        attained,
    ),
    check(
        "no measured head falls below the bound",
        "`AttentionEntropy` on lab models: entropy ≥ bound in every head",
        SOURCE,
        STORED,
        measured_below,
    ),
    check(
        "entropy as measured",
        "entropy and bound of `AttentionEntropy` are those of the weights, row by row",
        SOURCE,
        EachWithin(1e-5),
        measured_is,
    ),
)
