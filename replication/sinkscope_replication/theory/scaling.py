"""What a factor on the softmax does to training, and the p-normalizer.

Let the weights be α·softmax(s). The block's output is then softmax(s) V (α W_O): the model with plain softmax and
W_O' = α W_O computes the same function. Since ∂L/∂W_O = α ∂L/∂W_O' and all other gradients are equal, two trainings
stay equal, W_O' = α W_O in every step and all other parameters and losses the same, if W_O' alone is trained with

    SGD, also with momentum:   η' = α² η,  λ' = λ / α²                 (L2 decay λ)
    AdamW:                     η' = α η,  eps' = eps / α,  γ' = γ / α   (decoupled decay γ),

and everything else as before. A clipped global gradient norm breaks this, since ‖∂L/∂W_O‖ differs. Source: Gu et al.
2025, equations 32–42; derived again here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.model import LabForCausalLM
from sinkscope.statistics.claims import CaseValue, EachAbove, EachWithin
from sinkscope_replication.theory import closed_forms as closed
from sinkscope_replication.theory.check import ROUNDING, STORED, check
from sinkscope_replication.theory.subjects import Build, gap, lab, look, ordinary, row_of_weights

ALPHAS = (2.0, 0.2, 0.05)
POWERS = (0.25, 0.5, 1.0, 2.0, 3.0)
STEPS = 6
OUTPUT = "self_attn.o_proj.weight"
VALUE = "self_attn.v_proj.weight"

Optimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
Settings = Callable[[float], dict[str, float]]
"""What the plain model's W_O is trained with, by α."""


def sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """SGD with momentum and L2 decay: η = 0.5, λ = 0.001."""
    return torch.optim.SGD(groups, lr=0.5, momentum=0.9, weight_decay=1e-3)


def adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """AdamW: η = 0.003, γ = 0.1; eps is large enough to matter."""
    return torch.optim.AdamW(groups, lr=0.003, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1)


def sgd_rule(alpha: float) -> dict[str, float]:
    """η' = α² η, λ' = λ / α²."""
    return {"lr": 0.5 * alpha**2, "weight_decay": 1e-3 / alpha**2}


def adamw_rule(alpha: float) -> dict[str, float]:
    """η' = α η, eps' = eps / α, γ' = γ / α."""
    return {"lr": 0.003 * alpha, "eps": 1e-4 / alpha, "weight_decay": 0.1 / alpha}


def is_scaling(build: Build = lab, where: str = OUTPUT) -> Iterator[CaseValue]:
    """max |logits with α·softmax − logits with softmax and a weight times α|."""
    for alpha in ALPHAS:
        scaled, plain = pair(alpha, build, where)
        yield CaseValue(f"α = {alpha:g}", gap(look(scaled, ordinary(24)).logits, look(plain, ordinary(24)).logits))


def trainings_stay_equal(
    optimizer: Optimizer, rule: Settings, build: Build = lab, alphas: Sequence[float] = ALPHAS
) -> Iterator[CaseValue]:
    """After each step: max |W_O' − α W_O|, max |other parameter − its twin|, |loss − its twin|; the largest of them."""
    for alpha in alphas:
        scaled, plain = pair(alpha, build)
        walks = zip(steps(scaled, optimizer, {}), steps(plain, optimizer, rule(alpha)), strict=True)
        for step, ((loss, twin_loss)) in enumerate(walks, start=1):
            apart = parameters_apart(scaled, plain, alpha)
            yield CaseValue(f"α = {alpha:g}, step {step}", max(apart, abs(loss - twin_loss)))


def pair(alpha: float, build: Build = lab, where: str = OUTPUT) -> tuple[LabForCausalLM, LabForCausalLM]:
    """A model with α·softmax, and its twin with plain softmax and the weights named `where` times α."""
    scaled = build(attention={"name": "softmax_scaled", "alpha": alpha})
    plain = build(attention="softmax")
    plain.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name.endswith(where):
                parameter *= alpha
    return scaled, plain


def steps(model: LabForCausalLM, optimizer: Optimizer, outputs: dict[str, float]) -> Iterator[float]:
    """Train on fixed random batches; the loss of each step, after which the model has changed."""
    chosen = dict(model.named_parameters())
    output_group = {"params": [chosen[name] for name in chosen if name.endswith(OUTPUT)], **outputs}
    rest = {"params": [chosen[name] for name in chosen if not name.endswith(OUTPUT)]}
    running = optimizer([output_group, rest])
    for step in range(STEPS):
        batch = ordinary(12, samples=4, seed=10 + step)
        loss = model(batch, labels=batch, use_cache=False).loss
        running.zero_grad()
        loss.backward()
        running.step()
        yield float(loss.detach())


def parameters_apart(scaled: nn.Module, plain: nn.Module, alpha: float) -> float:
    """The largest difference of two twins' parameters, W_O counted times α."""
    twins: dict[str, Tensor] = dict(plain.named_parameters())
    return max(
        gap((alpha if name.endswith(OUTPUT) else 1.0) * parameter.detach(), twins[name].detach())
        for name, parameter in scaled.named_parameters()
    )


def power_is_normalizer(build: Build = lab) -> Iterator[CaseValue]:
    """max |A − e^s / (Σ e^{p s})^{1/p}|, e^s taken from the twin with softmax, in the first layer."""
    usual = look(build(attention="softmax"), ordinary(24)).weights[0]
    for p in POWERS:
        weights = look(build(attention={"name": "softmax_power", "p": p}), ordinary(24)).weights[0]
        yield CaseValue(f"p = {p:g}", gap(weights, closed.power_normalized(usual, p)))


def power_rows_in_range(build: Build = lab) -> Iterator[CaseValue]:
    """How far row sums leave the range between 1 and n^{1 − 1/p}, n the visible tokens."""
    count = torch.arange(1, 25, dtype=torch.float64)
    for p in POWERS:
        total = look(build(attention={"name": "softmax_power", "p": p}), ordinary(24)).weights.sum(-1)
        other = count ** (1 - 1 / p)
        low, high = torch.minimum(other, torch.ones(())), torch.maximum(other, torch.ones(()))
        yield CaseValue(f"p = {p:g}", float(torch.maximum(total - high, low - total).clamp(min=0).max()))


def power_golden() -> Iterator[CaseValue]:
    """max |weights of the scores 2, 1, 0 − reference|."""
    golden = {0.5: (0.256522, 0.094369, 0.034717), 2.0: (0.931028, 0.342506, 0.126001)}
    for p, values in golden.items():
        weights = row_of_weights({"name": "softmax_power", "p": p}, (2.0, 1.0, 0.0))
        yield CaseValue(f"p = {p:g}", gap(weights, torch.tensor(values, dtype=torch.float64)))


ALPHA = "Gu et al. 2025, equations 32–42"

CHECKS = (
    check(
        "α·softmax scales W_O",
        "logits with α·softmax are those with softmax and α W_O, α = 2, .2, .05",
        ALPHA,
        ROUNDING,
        is_scaling,
    ),
    check(
        "α·softmax scales W_V",
        "logits with α·softmax are those with softmax and α W_V",
        ALPHA,
        ROUNDING,
        partial(is_scaling, where=VALUE),
    ),
    check(
        "α under SGD",
        f"{STEPS} steps with momentum and decay: W_O' = α W_O and all else equal if W_O' learns with η' = α² η and "
        "λ' = λ/α²",
        ALPHA,
        EachWithin(1e-10),
        partial(trainings_stay_equal, sgd, sgd_rule),
    ),
    check(
        "α under AdamW",
        f"{STEPS} steps with decay: W_O' = α W_O and all else equal if W_O' learns with η' = α η, eps' = eps/α, γ' = "
        "γ/α",
        ALPHA,
        EachWithin(1e-10),
        partial(trainings_stay_equal, adamw, adamw_rule),
    ),
    check(
        "α under AdamW, not as under SGD",
        "η' = α² η does not do it for AdamW: the twins part within a step",
        "control",
        EachAbove(1e-6),
        partial(trainings_stay_equal, adamw, lambda alpha: {"lr": 0.003 * alpha**2}),
    ),
    check(
        "the p-normalizer",
        "softmax(p s)^(1/p) = e^s / (Σ e^{p s})^{1/p}, p = 1/4 … 3",
        "Gu et al. 2025, section 7",
        ROUNDING,
        power_is_normalizer,
    ),
    check(
        "rows of the p-normalizer",
        "sum to between n^{1 − 1/p} and 1: at most 1 for p ≤ 1, at least 1 for p ≥ 1",
        "Gu et al. 2025, section 7",
        ROUNDING,
        power_rows_in_range,
    ),
    check(
        "the p-normalizer in numbers",
        "scores 2, 1, 0: .256522, .094369, .034717 for p = .5; .931028, .342506, .126001 for p = 2",
        "Gu et al. 2025, section 7; computed independently",
        STORED,
        power_golden,
    ),
)
