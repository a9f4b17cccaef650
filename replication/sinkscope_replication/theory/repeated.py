"""Propositions 1–4: what position schemes leave of attention when every token is the same (Gu et al. 2025, appendix B).

With equal tokens and no absolute position all hidden states stay equal, so that weights depend only on distances and
have closed forms. Source: Gu et al. 2025, appendix B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.measurement.metrics import sink_rate
from sinkscope.model import LabForCausalLM, RelativeT5
from sinkscope.statistics.claims import CaseValue
from sinkscope_replication.theory import closed_forms as closed
from sinkscope_replication.theory.subjects import (
    HEADS,
    Build,
    Seen,
    alphas,
    blocks,
    gap,
    lab,
    look,
    measured,
    ordinary,
    repeated,
)

LENGTHS = (8, 16, 64, 128)
GROWING = (16, 64, 256, 512)
RELATIVE = ("none", "relative_t5", "relative_paper", "alibi", "rotary")
ABSOLUTE = ("sinusoidal", "learned")


def hidden_stay_equal(build: Build = lab, schemes: Sequence[str] = RELATIVE) -> Iterator[CaseValue]:
    """max_t ‖h_t − h_1‖ / ‖h_1‖ over all depths."""
    for scheme in schemes:
        model = build(position=scheme)
        for tokens in LENGTHS:
            hidden = look(model, repeated(tokens)).hidden
            apart = (hidden - hidden[:, :1]).norm(dim=-1) / hidden[:, :1].norm(dim=-1)
            yield CaseValue(f"{scheme}, T = {tokens}", float(apart.max()))


def far_from_uniform(build: Build = lab, schemes: Sequence[str] = RELATIVE) -> Iterator[CaseValue]:
    """On ordinary tokens: mean over heads of the largest difference of a layer's weights from 1/t."""
    for scheme in schemes:
        for layer, weights in enumerate(look(build(position=scheme), ordinary(64)).weights):
            uniform = closed.by_distance(torch.zeros(1, 64))
            yield CaseValue(f"{scheme}, layer {layer}", float((weights - uniform).abs().amax((-2, -1)).mean()))


def weights_follow(scheme: str, build: Build = lab) -> Iterator[CaseValue]:
    """max |A − closed form| over layers and heads."""
    model = build(position=scheme)
    for tokens in LENGTHS:
        seen = look(model, repeated(tokens))
        for layer, weights in enumerate(seen.weights):
            expected = closed.by_distance(score_by_distance(scheme, model, layer, seen, tokens))
            yield CaseValue(f"T = {tokens}, layer {layer}", gap(weights, expected))


def received_follows(scheme: str, build: Build = lab) -> Iterator[CaseValue]:
    """max |alpha_k − closed form| over layers, heads and positions, alpha_k as `sinkscope.measure` finds it."""
    model = build(position=scheme)
    for tokens in LENGTHS:
        seen = look(model, repeated(tokens))
        for layer, received in enumerate(alphas(model, repeated(tokens))):
            expected = closed.by_distance(score_by_distance(scheme, model, layer, seen, tokens))
            yield CaseValue(f"T = {tokens}, layer {layer}", gap(received, closed.received(expected)))


def score_by_distance(
    scheme: str, model: LabForCausalLM, layer: int, seen: Seen, tokens: int
) -> Float[Tensor, "heads tokens"]:
    """g(0) … g(T−1) of each head, up to a constant: the score on an equal token m positions back, by theory."""
    if scheme == "alibi":
        return -torch.tensor(closed.alibi_slopes(HEADS))[:, None] * torch.arange(tokens)
    if scheme == "relative_paper":
        return torch.tensor([[float(closed.bucket(m)) for m in range(tokens)]])
    if scheme == "relative_t5":
        return learned_table(model)[:, [closed.bucket(m) for m in range(tokens)]]
    if scheme == "rotary":
        return closed.rotary_scores(*query_and_key(model, layer, seen), tokens)
    return torch.zeros(1, tokens)


def learned_table(model: LabForCausalLM) -> Float[Tensor, "heads bucket"]:
    """The biases that a `relative_t5` model has learned, as a view: what is written there is what the model adds."""
    return next(module for module in model.modules() if isinstance(module, RelativeT5)).table.detach().T


def query_and_key(
    model: LabForCausalLM, layer: int, seen: Seen
) -> tuple[Float[Tensor, "heads dim"], Float[Tensor, "heads dim"]]:
    """Query and key of the first token before rotation, a row for each query head."""
    block = blocks(model)[layer]
    with torch.no_grad():
        entering = block.input_layernorm(seen.hidden[layer, 0])
        query = block.self_attn.q_proj(entering).unflatten(-1, (HEADS, -1))
        key = block.self_attn.k_proj(entering).unflatten(-1, (-1, query.shape[-1]))
    return query, key.repeat_interleave(HEADS // len(key), 0)


def rotary_within_bound(build: Build = lab) -> Iterator[CaseValue]:
    """How far weights overstep e^{2ξ} / (e^{2ξ} + t − 1), and alpha_1 the mean of that; with queries down to ξ ≈ 0.05.

    For large ξ the bound is near one and any weights keep it.
    """
    for factor in (1.0, 0.1, 0.01):
        model = build(position="rotary")
        with torch.no_grad():
            for block in blocks(model):
                block.self_attn.q_proj.weight *= factor
        for tokens in LENGTHS:
            seen = look(model, repeated(tokens))
            over = [_overstep(model, layer, seen) for layer in range(len(seen.weights))]
            yield CaseValue(f"queries × {factor:g}, T = {tokens}", max(over))


def _overstep(model: LabForCausalLM, layer: int, seen: Seen) -> float:
    query, key = query_and_key(model, layer, seen)
    weights = seen.weights[layer]
    bound = closed.rotary_bound(query.norm(dim=-1) * key.norm(dim=-1) / query.shape[-1] ** 0.5, weights.shape[-1])
    row = (weights.amax(-1) - bound).clamp(min=0).max()
    first = (closed.received(weights)[:, 0] - bound.mean(-1)).clamp(min=0).max()
    return max(float(row), float(first))


def rotary_bound_is() -> Iterator[CaseValue]:
    """|mean over t of the bound − reference|."""
    for xi, value in {0.5: 0.144, 1.0: 0.269, 1.5: 0.455, 2.0: 0.666}.items():
        bound = closed.rotary_bound(torch.tensor([xi], dtype=torch.float64), 64)
        yield CaseValue(f"ξ = {xi:g}", float(bound.mean()) - value)


def sink_rate_is(expected: Mapping[int, float], scheme: str, build: Build = lab) -> Iterator[CaseValue]:
    """|Sink_1 − expected| in percent, by length of the context."""
    model = build(position=scheme)
    for tokens, rate in expected.items():
        received = measured(model, repeated(tokens)).data["attention_received"].values
        yield CaseValue(f"T = {tokens}", float(sink_rate(received, closed.EPSILON)[0]) - rate)


def received_is(
    expected: Mapping[int, float | Sequence[float]], scheme: str, build: Build = lab
) -> Iterator[CaseValue]:
    """max over layers and heads of |alpha_1 − expected|; one number for all heads, or one for each."""
    model = build(position=scheme)
    for tokens, values in expected.items():
        received = alphas(model, repeated(tokens))[..., 0]
        yield CaseValue(f"T = {tokens}", gap(received, torch.tensor(values, dtype=torch.float64)))


def vanishing(build: Build = lab, schemes: Sequence[str] = RELATIVE) -> Iterator[CaseValue]:
    """By how much the largest alpha_1 of any head falls from one length to the next, and at the last is below ε / 3."""
    for scheme in schemes:
        model = build(position=scheme)
        largest = {tokens: float(alphas(model, repeated(tokens))[..., 0].max()) for tokens in GROWING}
        for (shorter, before), (longer, after) in pairwise(largest.items()):
            yield CaseValue(f"{scheme}, T = {shorter} → {longer}", before - after)
        yield CaseValue(f"{scheme}, T = {GROWING[-1]}", closed.EPSILON / 3 - largest[GROWING[-1]])


def minus_bucket(tokens: int = 64, build: Build = lab) -> Iterator[CaseValue]:
    """alpha_1 of a learned T5 table that was set to −bucket: the sign decides where attention goes."""
    model = build(position="relative_t5")
    table = learned_table(model)
    table.copy_(-torch.arange(table.shape[1]).expand_as(table))
    yield CaseValue(f"T = {tokens}", gap(alphas(model, repeated(tokens))[..., 0], torch.tensor(0.0220225)))
