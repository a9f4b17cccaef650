"""Operations that compute a softmax, or change how it normalizes."""

from __future__ import annotations

from sinkscope.attention.catalog.entry import Option, Section
from sinkscope.attention.normalizers import ClippedSoftmax, PowerSoftmax, ScaledSoftmax, Softpick
from sinkscope.attention.scoring.first_key import FirstKeyLogit
from sinkscope.attention.slots import LogitSlot, SuffixSlot, ZeroSlot
from sinkscope.attention.spec import AttentionSpec

SECTION = Section("Softmax and its normalization")
line = SECTION.line


@line(
    formula="A = softmax(s), s = q·k / √d",
    rows="tokens sum to 1",
    source="Vaswani et al. 2017",
    effect="Sink₁ 18.18 %, loss 3.73 (60M); 45.11 %, 3.07 (1B) [Gu et al.]",
)
def softmax() -> AttentionSpec:
    return AttentionSpec()


@line(
    formula="A = α · softmax(s)",
    rows="tokens sum to α",
    source="Gu et al. 2025, Table 14",
    effect="α = 2, 1, 0.2, 0.1, 0.05: Sink₁ 29.10, 18.18, 9.41, 3.59, 4.53 %, loss 3.72, 3.73, 3.72, 3.76, 3.78 "
    "[Gu et al.]",
)
def softmax_scaled(alpha: Option = 0.1) -> AttentionSpec:
    return AttentionSpec(normalizer=ScaledSoftmax(alpha=alpha))


@line(
    formula="A = softmax(p · s)^(1/p)",
    rows="at most 1 for p ≤ 1; from 1 to n^(1−1/p) for p ≥ 1",
    source="Gu et al. 2025, section 7",
    effect="p = 1/2, 1/3, 1/4 train with weaker massive activations; p = 2, 3, 4 diverge [Gu et al.]",
)
def softmax_power(p: Option = 0.5) -> AttentionSpec:
    return AttentionSpec(normalizer=PowerSoftmax(p=p))


@line(
    formula="A = exp(s) / (1 + Σ exp(s))",
    rows="tokens sum to less than 1; the rest goes to a slot without a value",
    source="Miller 2023, 'Attention is off by one'; the zero sink of Xiao et al. 2024",
    effect="first-token share 65 → 3.3 % together with OrthoAdam [Kaul et al. 2024, secondary]",
)
def softmax_off_by_one() -> AttentionSpec:
    return AttentionSpec(slots=(ZeroSlot(),))


@line(
    formula="A = exp(s) / (exp(b) + Σ exp(s)); b per head, or b + w·x",
    rows="tokens sum to less than 1; the rest goes to a slot without a value",
    source="OpenAI 2025; input-dependent as in inkling2 of transformers",
    acts="b per query head, added after scaling; w on the block's input",
)
def sink_logit(initial: Option = 0.0, reads_input: Option = False) -> AttentionSpec:
    return AttentionSpec(slots=(LogitSlot(initial=initial, reads_input=reads_input),))


@line(
    formula="A = softmax(s + b · [k is the first token]); b per head",
    rows="tokens sum to 1",
    source="MiMo-V2.5 (Xiaomi 2026), vision encoder",
    acts="b per query head, added after scaling",
)
def first_key_logit(initial: Option = 0.0) -> AttentionSpec:
    return AttentionSpec(first_key=FirstKeyLogit(initial=initial))


@line(
    formula="A = clip((ζ − γ) · softmax(s) + γ, 0, 1); γ, or γ = −α / n",
    rows="from 0 to ζ",
    source="Bondarenko et al. 2023 (2306.12929)",
    effect="BERT: largest activation 735 → 21.5, kurtosis 3076 → 80 [Bondarenko et al., secondary]",
)
def clipped_softmax(gamma: Option = None, zeta: Option = 1.0, alpha: Option = None) -> AttentionSpec:
    return AttentionSpec(normalizer=ClippedSoftmax(gamma=gamma, zeta=zeta, alpha=alpha))


@line(
    formula="A = relu(eˢ − 1) / (Σ |eˢ − 1| + ε)",
    rows="at most 1",
    source="Zuhri et al. 2025 (2504.20966)",
    effect="sink rate 0 %, kurtosis 33,510 → 340 (340M) [Zuhri et al., secondary]",
)
def softpick(epsilon: Option = 1e-8) -> AttentionSpec:
    return AttentionSpec(normalizer=Softpick(epsilon=epsilon))


@line(
    formula="A_tk = exp(s_tk) / (Σ_{i≤t} exp(s_ti) + Σ_{t<j<context} exp(−γ j))",
    rows="tokens sum to less than 1, more for later queries; 1 for the last position",
    source="Yin et al. 2024 (2402.04779), −γ j not compared with code, which does not run",
    effect="perplexity 22.5 → 21.1 (ablation), 10.7 → 10.4 (1.4B) [Yin et al., secondary]",
)
def stable_mask(gamma: Option = "alibi", context: Option = None) -> AttentionSpec:
    return AttentionSpec(slots=(SuffixSlot(gamma=gamma, context=context),))
