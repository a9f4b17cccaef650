"""Propositions 1–4 as claims: when a repeated token leaves no sink, and how long a context that takes (Gu et al. 2025,
appendix B).
"""

from __future__ import annotations

from functools import partial

from sinkscope.statistics.claims import EachAbove, EachWithin
from sinkscope_replication.theory.check import EXACT, ROUNDING, STORED, check
from sinkscope_replication.theory.repeated import (
    ABSOLUTE,
    far_from_uniform,
    hidden_stay_equal,
    minus_bucket,
    received_follows,
    received_is,
    rotary_bound_is,
    rotary_within_bound,
    sink_rate_is,
    vanishing,
    weights_follow,
)

ANGLES = EachWithin(1e-5)  # rotary angles are made in fp32
PAPER = "Gu et al. 2025, appendix B"
HARMONIC = {8: 0.339732, 16: 0.211296, 64: 0.0741233, 128: 0.0424465}
SLOPED = (0.0283, 0.0360, 0.0447, 0.0540, 0.0620, 0.0675, 0.0707, 0.0724)  # four digits
FALLING = {64: 0.333958, 128: 0.211016, 256: 0.112853, 512: 0.058363}

CHECKS = (
    check(
        "equal tokens stay equal",
        "on a repeated token h_1 = … = h_T at every depth: without positions, with relative T5, the paper's relative, "
        "ALiBi and rotary ones",
        f"{PAPER}, propositions 1 to 4",
        ROUNDING,
        hidden_stay_equal,
    ),
    check(
        "absolute positions part equal tokens",
        "sinusoidal and learned embeddings of positions make the states of a repeated token differ",
        f"{PAPER}, propositions 1 to 4",
        EachAbove(0.01),
        partial(hidden_stay_equal, schemes=ABSOLUTE),
    ),
    check(
        "the models can attend",
        "on ordinary tokens the same models attend far from uniformly: max |A[t, i] − 1/t|, mean over heads, is large",
        "control",
        EachAbove(0.3),
        far_from_uniform,
    ),
    check(
        "no sink as the context grows",
        "under each of these schemes the largest alpha_1 of any head falls from T = 16 to 64, 256 and 512, where it "
        "is below a third of ε",
        f"{PAPER}, propositions 1 to 4",
        EachAbove(0),
        vanishing,
    ),
    check("no positions", "A[t, i] = 1/t", f"{PAPER}, proposition 1", ROUNDING, partial(weights_follow, "none")),
    check(
        "no positions, measured",
        "alpha_k = Σ_{t≥k} (1/t) / (T−k+1), so alpha_1 = H_T / T",
        f"{PAPER}, proposition 1",
        STORED,
        partial(received_follows, "none"),
    ),
    check(
        "no positions, in numbers",
        "alpha_1 = .339732, .211296, .0741233, .0424465 at T = 8, 16, 64, 128",
        f"{PAPER}, proposition 1; computed independently",
        STORED,
        partial(received_is, HARMONIC, "none"),
    ),
    check(
        "no positions: no sink from T = 10 on",
        "Sink_1 at ε = .3 is 100 % up to T = 9 and 0 % from T = 10 on",
        f"{PAPER}, proposition 1; computed independently",
        EXACT,
        partial(sink_rate_is, {4: 100.0, 9: 100.0, 10: 0.0, 64: 0.0}, "none"),
    ),
    check(
        "relative T5",
        "A[t, i] ∝ exp(table[bucket(t−i)]), whatever the token is",
        f"{PAPER}, proposition 2",
        ROUNDING,
        partial(weights_follow, "relative_t5"),
    ),
    check(
        "the paper's relative positions",
        "A[t, i] ∝ exp(+bucket(t−i))",
        f"{PAPER}, proposition 2",
        ROUNDING,
        partial(weights_follow, "relative_paper"),
    ),
    check(
        "relative, measured",
        "alpha_k as measured is that of exp(+bucket(t−i))",
        f"{PAPER}, proposition 2",
        STORED,
        partial(received_follows, "relative_paper"),
    ),
    check(
        "relative: a sink at T = 64 that dies out",
        "alpha_1 = .3340, .2110, .1129, .0584 at T = 64, 128, 256, 512: 'no sink' holds only as T grows",
        f"{PAPER}, proposition 2; computed independently",
        STORED,
        partial(received_is, FALLING, "relative_paper"),
    ),
    check(
        "relative: the sink rate",
        "Sink_1 at ε = .3 is 100 % at T = 64 and 0 % from T = 128 on",
        f"{PAPER}, proposition 2; computed independently",
        EXACT,
        partial(sink_rate_is, {16: 100.0, 64: 100.0, 128: 0.0, 256: 0.0}, "relative_paper"),
    ),
    check(
        "relative: the sign decides",
        "a learned T5 table set to −bucket has alpha_1 = .0220 at T = 64",
        f"{PAPER}, proposition 2; computed independently",
        STORED,
        minus_bucket,
    ),
    check(
        "ALiBi",
        "A[t, i] ∝ exp(−m_h (t−i)), m_h = 2^(−h) for 8 heads",
        f"{PAPER}, proposition 3",
        ROUNDING,
        partial(weights_follow, "alibi"),
    ),
    check(
        "ALiBi: no sink at T = 64",
        "Sink_1 at ε = .3 is 0 % at T = 16 and 64, in every head",
        f"{PAPER}, proposition 3",
        EXACT,
        partial(sink_rate_is, {16: 0.0, 64: 0.0}, "alibi"),
    ),
    check(
        "ALiBi, in numbers",
        "alpha_1 of heads 1 … 8 at T = 64: .0283, .0360, .0447, .0540, .0620, .0675, .0707, .0724",
        f"{PAPER}, proposition 3; computed independently",
        EachWithin(5.1e-5),
        partial(received_is, {64: SLOPED}, "alibi"),
    ),
    check(
        "rotary",
        "A[t, i] ∝ exp(qᵀ R(t−i) k / √d) with the one q and k there are",
        f"{PAPER}, proposition 4",
        ANGLES,
        partial(weights_follow, "rotary"),
    ),
    check(
        "rotary: the bound",
        "A[t, i] ≤ e^{2ξ} / (e^{2ξ} + t − 1), ξ = ‖q‖ ‖k‖ / √d, and alpha_1 at most the mean of that over t",
        f"{PAPER}, proposition 4",
        ROUNDING,
        rotary_within_bound,
    ),
    check(
        "rotary: the bound, in numbers",
        "at T = 64 and ξ = .5, 1, 1.5, 2 the bound on alpha_1 is .144, .269, .455, .666",
        f"{PAPER}, proposition 4; computed independently",
        EachWithin(5e-4),
        rotary_bound_is,
    ),
)
