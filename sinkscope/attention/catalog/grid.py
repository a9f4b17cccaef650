"""The paper's grid of similarities and normalizers, and its relatives."""

from __future__ import annotations

from sinkscope.attention.catalog.entry import Option, Section
from sinkscope.attention.normalizers import Elu, Linear, PowerSigmoid, Relu, Sigmoid
from sinkscope.attention.scoring.similarity import Kernel
from sinkscope.attention.spec import AttentionSpec

SECTION = Section("Other similarities and normalizers")
line = SECTION.line
AFTER = "two maps (d, d) without bias, the same for q and k and for all heads, after rotation"
PHI = "nothing is learned; φ acts after rotation"


@line(
    formula="A = σ(s)",
    rows="anything between 0 and the number of visible tokens",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="sink 0.44 %, loss 3.70 (60M); 2.46 %, 3.10 (1B) [Gu et al.]",
)
def sigmoid(bias: Option = 0.0) -> AttentionSpec:
    return AttentionSpec(normalizer=Sigmoid(bias=bias))


@line(
    formula="A = σ(s) / Σ σ(s)",
    rows="tokens sum to 1",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="sink 30.24 %, loss 3.74 [Gu et al.]",
)
def sigmoid_normalized() -> AttentionSpec:
    return AttentionSpec(normalizer=Sigmoid(normalized=True))


@line(
    formula="A = σ(s) / (Σ σ(s)^p)^(1/p)",
    rows="at most 1 for p ≤ 1; from 1 to n^(1−1/p) for p ≥ 1",
    source="Gu et al. 2025, section 7",
    effect="trains for p > 1, with massive activations [Gu et al.]",
)
def sigmoid_power(p: Option = 2.0) -> AttentionSpec:
    return AttentionSpec(normalizer=PowerSigmoid(p=p))


@line(
    formula="A = σ(s − log n + b), n visible tokens",
    rows="n / (1 + n) for zero scores",
    source="Ramapuram et al. 2024 (2409.04431); their code adds −log of the context, one number for all queries",
)
def sigmoid_bias(bias: Option = 0.0) -> AttentionSpec:
    return AttentionSpec(normalizer=Sigmoid(bias=bias, minus_log_n=True))


@line(
    formula="A = elu(s) + 1",
    rows="any positive number",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="sink 0.80 %, loss 3.69 [Gu et al.]",
)
def elu() -> AttentionSpec:
    return AttentionSpec(normalizer=Elu())


@line(
    formula="A = (elu(s) + 1) / Σ (elu(s) + 1)",
    rows="tokens sum to 1",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="fails to converge [Gu et al.]",
)
def elu_normalized() -> AttentionSpec:
    return AttentionSpec(normalizer=Elu(normalized=True))


@line(
    formula="A = relu(s) / n, n visible tokens (or without n)",
    rows="any number from 0",
    source="Guo et al. 2024a (2410.13835); Wortsman et al. 2023b (2309.08586), relu / L",
    effect="removes the sink's mechanism in Bigram-Backcopy [Guo et al.]",
)
def relu(over_n: Option = True, normalized: Option = False) -> AttentionSpec:
    return AttentionSpec(normalizer=Relu(over_n=over_n, normalized=normalized))


@line(
    formula="A = φ(q)·φ(k) / √d, φ = elu + 1",
    rows="any positive number",
    source="Gu et al. 2025, Tables 6 and 15",
    acts=PHI,
    effect="fails to converge [Gu et al.]",
)
def kernel_elu() -> AttentionSpec:
    return AttentionSpec(similarity=Kernel(feature="elu"), normalizer=Linear())


@line(
    formula="A = φ(q)·φ(k) / Σ φ(q)·φ(k), φ = elu + 1",
    rows="tokens sum to 1",
    source="Gu et al. 2025, Tables 6 and 15; Katharopoulos et al. 2020",
    acts=PHI,
    effect="sink 53.65 %, loss 4.19 [Gu et al.]",
)
def kernel_elu_normalized() -> AttentionSpec:
    return AttentionSpec(similarity=Kernel(feature="elu"), normalizer=Linear(divisor="sum"))


@line(
    formula="A = q·k / √d",
    rows="any number, also negative",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="sink 0.00 %, loss 3.99 [Gu et al.]",
)
def kernel_identity() -> AttentionSpec:
    return AttentionSpec(normalizer=Linear())


@line(
    formula="A = s / max(|Σ s|, 1), s = q·k / √d",
    rows="from −1 to 1",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="fails to converge [Gu et al.]",
)
def kernel_identity_normalized() -> AttentionSpec:
    return AttentionSpec(normalizer=Linear(divisor="abs_sum"))


@line(
    formula="A = φ(q)·φ(k) / √d, φ(x) = W₂ relu(W₁ x)",
    rows="any number, also negative",
    source="Gu et al. 2025, Tables 6 and 15",
    acts=AFTER,
    effect="sink 0.74 %, loss 3.91 [Gu et al.]",
)
def kernel_mlp() -> AttentionSpec:
    return AttentionSpec(similarity=Kernel(feature="mlp"), normalizer=Linear())


@line(
    formula="A = s / max(|Σ s|, 1), s = φ(q)·φ(k) / √d, φ(x) = W₂ relu(W₁ x)",
    rows="from −1 to 1",
    source="Gu et al. 2025, Tables 6 and 15",
    acts=AFTER,
    effect="sink 0.19 %, loss 3.85 [Gu et al.]",
)
def kernel_mlp_normalized() -> AttentionSpec:
    return AttentionSpec(similarity=Kernel(feature="mlp"), normalizer=Linear(divisor="abs_sum"))
