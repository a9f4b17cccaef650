"""What the figure of the theory page shows: series of numbers, measured and expected."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sinkscope.model import LabForCausalLM
from sinkscope_replication.theory import closed_forms as closed
from sinkscope_replication.theory.mixing import added_and_normed, mixed, random_tokens, relative_spread, sink, unit
from sinkscope_replication.theory.repeated import RELATIVE, score_by_distance
from sinkscope_replication.theory.subjects import Build, alphas, blocks, lab, look, repeated

LENGTHS = (4, 8, 16, 32, 64, 128, 256)
LAYERS = 16
SINKS = {"no sink": -30.0, "sink logit 0": 0.0, "sink logit 2": 2.0, "sink logit 4": 4.0, "sink logit 8": 8.0}


@dataclass(frozen=True)
class Curve:
    """A named series; `expected` where a closed form says what it must be."""

    name: str
    x: tuple[int, ...]
    found: tuple[float, ...]
    expected: tuple[float, ...] | None = None


def sinks_by_length(build: Build = lab) -> list[Curve]:
    """alpha_1 on a repeated token against T, mean over layers and heads, for every scheme without absolute places."""
    curves = []
    for scheme in RELATIVE:
        model = build(position=scheme)
        means = [float(alphas(model, repeated(tokens))[..., 0].mean()) for tokens in LENGTHS]
        curves.append(Curve(scheme, LENGTHS, tuple(means), _expected(scheme, model)))
    return curves


def _expected(scheme: str, model: LabForCausalLM) -> tuple[float, ...]:
    """The mean over layers and heads of the closed form, for each length."""
    seen = look(model, repeated(2))
    layers = range(len(blocks(model)))
    weights = [closed.by_distance(score_by_distance(scheme, model, layer, seen, LENGTHS[-1])) for layer in layers]
    first = [[closed.received(each[:, :tokens, :tokens])[:, 0].mean() for each in weights] for tokens in LENGTHS]
    return tuple(float(torch.stack(means).mean()) for means in first)


def spread_by_depth() -> list[Curve]:
    """mu(V) / ‖V‖ against the number of layers of uniform attention, residual stream and unit tokens, by sink logit."""
    curves = []
    for name, logit in SINKS.items():
        states = mixed(unit(random_tokens()), sink(logit), LAYERS, added_and_normed)
        curves.append(Curve(name, tuple(range(LAYERS + 1)), tuple(relative_spread(state) for state in states)))
    return curves
