"""Gates and norms around a softmax, and operations beyond the paper."""

from __future__ import annotations

from sinkscope.attention.catalog.entry import Option, Section
from sinkscope.attention.difference import Difference
from sinkscope.attention.normalizers import StickBreaking
from sinkscope.attention.outputs import ElementGate, Exclusive, HeadGate, ValueGate
from sinkscope.attention.scoring.decay import ForgettingGate
from sinkscope.attention.scoring.query_key import QueryKeyNorm
from sinkscope.attention.scoring.temperature import LogLength
from sinkscope.attention.spec import AttentionSpec

SECTION = Section("Gates and norms")
BEYOND = Section("Beyond the paper")
line = SECTION.line
ONE = "tokens sum to 1"


@line(
    formula="y_h = σ(w_h·x_h + b_h) · (softmax(s) V)_h",
    rows=ONE,
    source="Bondarenko et al. 2023 (2306.12929); reads = 12 with openness = 0.5 and initial_std = 0: Dial 2025",
    acts="per head, on the h-th slice of the block's input (or all of it, its first n channels, or a learned scalar)",
    effect="OPT-125M: largest activation 340 → 8.7, kurtosis 1778 → 18.9 [Bondarenko et al., secondary]",
)
def gated_head(
    reads: Option = "slice", openness: Option = 0.25, mlp_width: Option = None, initial_std: Option = 0.02
) -> AttentionSpec:
    gate = HeadGate(reads=reads, openness=openness, mlp_width=mlp_width, initial_std=initial_std)
    return AttentionSpec(output=(gate,))


@line(
    formula="y = σ(W x + b) ⊙ softmax(s) V",
    rows=ONE,
    source="Qiu et al. 2025 (2505.06708), as `elementwise_attn_output_gate` of their code, which has no b",
    acts="per channel of every head, on the block's input, after aggregation",
)
def gated_elementwise(openness: Option = 0.5) -> AttentionSpec:
    return AttentionSpec(output=(ElementGate(openness=openness),))


@line(
    formula="y = softmax(s) (σ(W x + b) ⊙ V)",
    rows=ONE,
    source="Qiu et al. 2025 (2505.06708), their gate after the value projection; not compared with code",
    acts="per channel of every key-value head (or one per head), on the block's input at the value's token",
)
def gated_value(openness: Option = 0.5, per_head: Option = False) -> AttentionSpec:
    return AttentionSpec(value_gate=ValueGate(openness=openness, per_head=per_head))


@line(
    formula="s = norm(q)·norm(k) / √d",
    rows=ONE,
    source="Dehghani et al. 2023 (2302.05442); Wortsman et al. 2023a (2309.14322); gains not compared with code",
    acts="one gain per channel for q and one for k, the same for all heads, before rotation",
)
def qk_norm(norm: Option = "rmsnorm") -> AttentionSpec:
    return AttentionSpec(query_key=QueryKeyNorm(norm=norm))


@BEYOND.line(
    formula="A = softmax(c_h · log(n) · s), n visible tokens",
    rows=ONE,
    source="Nakanishi 2025 (2501.19399), n^(c s) without the offset of their fit",
    acts="c per head",
)
def scalable_softmax(initial: Option = 1.0) -> AttentionSpec:
    return AttentionSpec(temperature=LogLength(initial=initial))


@BEYOND.line(
    formula="A_tk = σ(s_tk) · Π_{k<i≤t} (1 − σ(s_ti))",
    rows="tokens sum to at most 1",
    source="Tan et al. 2024 (2410.17980); their kernels leave out a query's own token unless told (`attend_current`)",
)
def stick_breaking() -> AttentionSpec:
    return AttentionSpec(normalizer=StickBreaking())


@BEYOND.line(
    formula="A = softmax(s_tk + Σ_{k<l≤t} log f_l), f = σ(w_h·x + b_h)",
    rows=ONE,
    source="Lin et al. 2025 (2503.02130)",
    acts="f per head, on the block's input at every token; log f is kept in the cache",
)
def forgetting_gate(openness: Option = 0.5) -> AttentionSpec:
    return AttentionSpec(decay=ForgettingGate(openness=openness))


@BEYOND.line(
    formula="A = softmax(s₁) − λ softmax(s₂), y = (1 − λ₀) RMSNorm(A V)",
    rows="tokens sum to 1 − λ",
    source="Ye et al. 2024 (2410.05258), not compared with code",
    acts="λ from four vectors per layer; a gain per channel for all heads, after aggregation",
)
def differential(lambda_init: Option = None) -> AttentionSpec:
    return AttentionSpec(difference=Difference(lambda_init=lambda_init))


@BEYOND.line(
    formula="z_t = y_t − (y_t·v_t) v_t / ‖v_t‖², y = softmax(s) V",
    rows=ONE,
    source="Zhai 2026 (2603.09078)",
    effect="loss below that of softmax at 0.7B to 2.7B, more so in longer contexts [Zhai, secondary]",
)
def exclusive() -> AttentionSpec:
    return AttentionSpec(output=(Exclusive(),))
