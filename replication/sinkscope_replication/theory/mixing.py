"""How attention makes tokens alike, and how a sink without a value slows it down.

mu(V) = ‖V − (1/n) 1 1ᵀ V‖_F measures how far tokens are from being one and the same. Source: Dong et al. 2021; Barbero
et al. 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import AttentionSpec, Causal, LogitSlot, Window
from sinkscope.statistics.claims import CaseValue, EachAbove, EachWithin
from sinkscope_replication.theory import closed_forms as closed
from sinkscope_replication.theory.check import STORED, check
from sinkscope_replication.theory.subjects import Build, blocks, fill_slots, gap, lab, look, ordinary

GOLDEN = {0: 1.732051, 1: 0.777282, 2: 0.452136, 4: 0.150436, 8: 0.011670, 16: 0.0000481}
OPENINGS = (-30.0, 0.0, 2.0, 4.0, 8.0)
"""Logits of a sink where all scores are zero: the first attracts nothing, the last nearly everything."""

DEPTH = 8
SEEDS = (0, 1, 2)
SOFTMAX = AttentionSpec()
SELF_ALONE = AttentionSpec(mask=Causal() & Window(1))


Vectors = Float[Tensor, "token width"]
Step = Callable[[Vectors, Vectors], Vectors]


def sink(logit: float) -> AttentionSpec:
    """Softmax with a sink logit that starts there."""
    return AttentionSpec(slots=(LogitSlot(initial=logit),))


def averaged(old: Vectors, update: Vectors) -> Vectors:
    """V ← A V."""
    return update


def added(old: Vectors, update: Vectors) -> Vectors:
    """V ← V + A V."""
    return old + update


def added_and_normed(old: Vectors, update: Vectors) -> Vectors:
    """V ← unit(V + A V), row by row, so that only directions count."""
    return unit(old + update)


def unit(vectors: Vectors) -> Vectors:
    """Rows of length one."""
    return vectors / vectors.norm(dim=-1, keepdim=True)


def mixed(vectors: Vectors, spec: AttentionSpec, layers: int, step: Step = averaged) -> list[Vectors]:
    """V_0 … V_L of attention whose queries and keys are zero, each from the last by `step`."""
    width = vectors.shape[1]
    operation = spec.build(heads=1, kv_heads=1, head_dim=width, hidden_size=width).double()
    zeros = torch.zeros_like(vectors)[None, None]
    states = [vectors]
    with torch.no_grad():
        for _ in range(layers):
            update = operation(zeros, zeros, states[-1][None, None], path="reference").output[0, 0]
            states.append(step(states[-1], update))
    return states


def relative_spread(vectors: Vectors) -> float:
    """mu(V) / ‖V‖_F: 0 at rank collapse, at most 1."""
    return closed.spread(vectors) / float(torch.linalg.matrix_norm(vectors))


def random_tokens(tokens: int = 12, width: int = 16) -> Vectors:
    """Tokens drawn from a normal distribution."""
    return torch.randn(tokens, width, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def collapse_is() -> Iterator[CaseValue]:
    """|mu after l layers of uniform causal averaging of I_4 − reference|."""
    states = mixed(torch.eye(4, dtype=torch.float64), SOFTMAX, max(GOLDEN))
    for layers, value in GOLDEN.items():
        yield CaseValue(f"{layers} layers", closed.spread(states[layers]) - value)


def identity_keeps() -> Iterator[CaseValue]:
    """max |V_l − V_0| where every token attends only to itself."""
    states = mixed(random_tokens(), SELF_ALONE, DEPTH)
    for layers, state in enumerate(states):
        yield CaseValue(f"{layers} layers", gap(state, states[0]))


def full_sink_keeps() -> Iterator[CaseValue]:
    """max |V_l − V_0| with a residual stream, where a sink without a value takes all but e^−40 of the attention."""
    states = mixed(random_tokens(), sink(40.0), DEPTH, added)
    for layers, state in enumerate(states):
        yield CaseValue(f"{layers} layers", gap(state, states[0]))


def sink_slows() -> Iterator[CaseValue]:
    """Relative spread at each depth, less that with the next weaker sink."""
    start = unit(random_tokens())
    spreads = {b: list(map(relative_spread, mixed(start, sink(b), DEPTH, added_and_normed))) for b in OPENINGS}
    for weaker, stronger in pairwise(OPENINGS):
        for depth in range(1, DEPTH + 1):
            more = spreads[stronger][depth] - spreads[weaker][depth]
            yield CaseValue(f"b = {weaker:g} → {stronger:g}, {depth} layers", more)


def sink_slows_the_lab_model(build: Build = lab) -> Iterator[CaseValue]:
    """The same of a lab model's last hidden states, its queries at zero, its norms and feed-forwards as they are."""
    for seed in SEEDS:
        model = build(seed=seed, position="none", attention=sink(0.0), num_hidden_layers=DEPTH)
        with torch.no_grad():
            for layer in blocks(model):
                layer.self_attn.q_proj.weight.zero_()
        after = {}
        for logit in (OPENINGS[0], OPENINGS[-1]):
            after[logit] = relative_spread(look(fill_slots(model, logit), ordinary(32)).hidden[-1])
        yield CaseValue(f"seed {seed}", after[OPENINGS[-1]] - after[OPENINGS[0]])


DONG = "Dong et al. 2021"
BARBERO = "Barbero et al. 2025"

CHECKS = (
    check(
        "rank collapse in numbers",
        "uniform causal averaging of I_4: mu = 1.732051, .777282, .452136, .150436, .011670, .0000481 after 0, 1, 2, "
        "4, 8, 16 layers",
        "Dong et al. 2021; computed independently",
        STORED,
        collapse_is,
    ),
    check("self-attention alone", "A = I keeps every token, and so mu", DONG, EachWithin(1e-14), identity_keeps),
    check(
        "a full sink",
        "a sink without a value that takes everything keeps the residual stream as it is",
        BARBERO,
        EachWithin(1e-14),
        full_sink_keeps,
    ),
    check(
        "a sink slows the collapse",
        "uniform attention, residual stream, unit tokens: the stronger a sink without a value, the larger mu(V) / ‖V‖, "
        f"at each of {DEPTH} depths",
        BARBERO,
        EachAbove(1e-3),
        sink_slows,
    ),
    check(
        "a sink slows it in a lab model",
        f"after {DEPTH} random blocks with uniform attention, hidden states spread more with a sink than without",
        BARBERO,
        EachAbove(0.01),
        sink_slows_the_lab_model,
    ),
)
