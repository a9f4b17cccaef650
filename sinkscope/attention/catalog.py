"""The catalog: a function per attention operation, and lookup by name. See docs/extending.md.

Other packages add lines with `@sinkscope.operation` (`registering.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sinkscope.attention.difference import Difference
from sinkscope.attention.normalizers import (
    ClippedSoftmax,
    Elu,
    Entmax,
    Linear,
    PowerSigmoid,
    PowerSoftmax,
    Relu,
    ScaledSoftmax,
    Sigmoid,
    Softpick,
    StickBreaking,
)
from sinkscope.attention.outputs import (
    ElementGate,
    Exclusive,
    HeadGate,
    HeadNorm,
    OwnValueGate,
    ValueBias,
    ValueGate,
    ValueGradient,
    ValueStateGate,
)
from sinkscope.attention.pieces import PACKAGE
from sinkscope.attention.scores import Kernel
from sinkscope.attention.scoring.decay import ForgettingGate
from sinkscope.attention.scoring.first_key import FirstKeyLogit
from sinkscope.attention.scoring.query_key import CosineScores, QueryKeyNorm
from sinkscope.attention.scoring.temperature import LogLength
from sinkscope.attention.slots import FixedValue, KeySlot, LatentSlots, LogitSlot, SuffixSlot, ZeroSlot
from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError, unknown
from sinkscope.registry import Registry, missing, package_of

Maker = Callable[..., AttentionSpec]
Option = Any  # unchecked: validated by the piece that receives it


@dataclass(frozen=True)
class Entry:
    """An operation with a name: how it is made, its formula, and where it comes from.

    `rows`: what a row of weights sums to. `acts`: what is learned and where it acts (before or after rotation, per
    head or shared, on the block's input). `effect`: what was published about sinks under it.
    """

    name: str
    maker: Maker
    formula: str
    rows: str
    source: str
    acts: str = "nothing is learned"
    effect: str = "–"

    @cached_property
    def spec(self) -> AttentionSpec:
        """The operation with its default options."""
        return self.maker()

    @property
    def options(self) -> Mapping[str, Any]:
        """Options and their defaults."""
        return {name: option.default for name, option in inspect.signature(self.maker).parameters.items()}

    def make(self, **options: Any) -> AttentionSpec:
        """The operation with these options. Raises `InputError` for unknown ones and values out of range."""
        for option in options:
            if option not in self.options:
                if not self.options:
                    raise InputError(f"attention operation '{self.name}' has no options, got '{option}'")
                raise unknown(f"option of '{self.name}'", option, self.options)
        try:
            return self.maker(**options)
        except InputError as error:
            raise InputError(f"attention operation '{self.name}': {error}") from error

    def options_of(self, spec: AttentionSpec) -> dict[str, Any] | None:
        """The options, other than defaults, with which this line makes exactly this spec; None where there are none.

        An option that makes other pieces (`at` of `gated_by_value`) is not found. Names of runs hang on this form, so
        finding it would part finished runs from their recipes.
        """
        usual = dict(_leaves(self.spec.to_dict()))
        options = {path[-1]: value for path, value in _leaves(spec.to_dict()) if usual.get(path) != value}
        if not options.keys() <= self.options.keys():
            return None
        try:
            return options if self.make(**options) == spec else None
        except InputError:
            return None


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Nested data as paths and values. An option has the name of the field that it sets."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, (*path, str(key)))
    else:
        yield path, value


class CatalogSection:
    """Collects lines of the catalog: `@section.line(formula=..., rows=..., source=...)` decorates a function that makes
    a spec.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.entries: dict[str, Entry] = {}

    def line(self, **described: str) -> Callable[[Maker], Maker]:
        def add(maker: Maker) -> Maker:
            name = maker.__name__
            self.entries[name] = Entry(name, maker, **described)
            return maker

        return add


SOFTMAXES = CatalogSection("Softmax and its normalization")


@SOFTMAXES.line(
    formula="A = softmax(s), s = q·k / √d",
    rows="tokens sum to 1",
    source="Vaswani et al. 2017",
    effect="Sink₁ 18.18 %, loss 3.73 (60M); 45.11 %, 3.07 (1B) [Gu et al.]",
)
def softmax() -> AttentionSpec:
    return AttentionSpec()


@SOFTMAXES.line(
    formula="A = α · softmax(s)",
    rows="tokens sum to α",
    source="Gu et al. 2025, Table 14",
    effect="α = 2, 1, 0.2, 0.1, 0.05: Sink₁ 29.10, 18.18, 9.41, 3.59, 4.53 %, loss 3.72, 3.73, 3.72, 3.76, 3.78 "
    "[Gu et al.]",
)
def softmax_scaled(alpha: Option = 0.1) -> AttentionSpec:
    return AttentionSpec(normalizer=ScaledSoftmax(alpha=alpha))


@SOFTMAXES.line(
    formula="A = softmax(p · s)^(1/p)",
    rows="at most 1 for p ≤ 1; from 1 to n^(1−1/p) for p ≥ 1",
    source="Gu et al. 2025, section 7",
    effect="p = 1/2, 1/3, 1/4 train with weaker massive activations; p = 2, 3, 4 diverge [Gu et al.]",
)
def softmax_power(p: Option = 0.5) -> AttentionSpec:
    return AttentionSpec(normalizer=PowerSoftmax(p=p))


@SOFTMAXES.line(
    formula="A = exp(s) / (1 + Σ exp(s))",
    rows="tokens sum to less than 1; the rest goes to a slot without a value",
    source="Miller 2023, 'Attention is off by one'; the zero sink of Xiao et al. 2024",
    effect="first-token share 65 → 3.3 % together with OrthoAdam [Kaul et al. 2024, secondary]",
)
def softmax_off_by_one() -> AttentionSpec:
    return AttentionSpec(slots=(ZeroSlot(),))


@SOFTMAXES.line(
    formula="A = exp(s) / (exp(b) + Σ exp(s)); b per head, or b + w·x",
    rows="tokens sum to less than 1; the rest goes to a slot without a value",
    source="OpenAI 2025; input-dependent as in inkling2 of transformers",
    acts="b per query head, added after scaling; w on the block's input",
)
def sink_logit(initial: Option = 0.0, reads_input: Option = False) -> AttentionSpec:
    return AttentionSpec(slots=(LogitSlot(initial=initial, reads_input=reads_input),))


@SOFTMAXES.line(
    formula="A = softmax(s + b · [k is the first token]); b per head",
    rows="tokens sum to 1",
    source="MiMo-V2.5 (Xiaomi 2026), vision encoder",
    acts="b per query head, added after scaling",
)
def first_key_logit(initial: Option = 0.0) -> AttentionSpec:
    return AttentionSpec(first_key=FirstKeyLogit(initial=initial))


@SOFTMAXES.line(
    formula="A = clip((ζ − γ) · softmax(s) + γ, 0, 1); γ, or γ = −α / n",
    rows="from 0 to ζ",
    source="Bondarenko et al. 2023 (2306.12929)",
    effect="BERT: largest activation 735 → 21.5, kurtosis 3076 → 80 [Bondarenko et al., secondary]",
)
def clipped_softmax(gamma: Option = None, zeta: Option = 1.0, alpha: Option = None) -> AttentionSpec:
    return AttentionSpec(normalizer=ClippedSoftmax(gamma=gamma, zeta=zeta, alpha=alpha))


@SOFTMAXES.line(
    formula="A = relu(eˢ − 1) / (Σ |eˢ − 1| + ε)",
    rows="at most 1",
    source="Zuhri et al. 2025 (2504.20966)",
    effect="sink rate 0 %, kurtosis 33,510 → 340 (340M) [Zuhri et al., secondary]",
)
def softpick(epsilon: Option = 1e-8) -> AttentionSpec:
    return AttentionSpec(normalizer=Softpick(epsilon=epsilon))


@SOFTMAXES.line(
    formula="A = [(α − 1) s − τ]₊^(1/(α−1)), τ such that Σ A = 1; α = 1 is softmax, 2 sparsemax",
    rows="tokens sum to 1",
    source="Peters et al. 2019 (1905.05702)",
)
def entmax(alpha: Option = 1.5) -> AttentionSpec:
    return AttentionSpec(normalizer=Entmax(alpha=alpha))


@SOFTMAXES.line(
    formula="A_tk = exp(s_tk) / (Σ_{i≤t} exp(s_ti) + Σ_{t<j<context} exp(−γ j))",
    rows="tokens sum to less than 1, more for later queries; 1 for the last position",
    source="Yin et al. 2024 (2402.04779), −γ j not compared with code, which does not run",
    effect="perplexity 22.5 → 21.1 (ablation), 10.7 → 10.4 (1.4B) [Yin et al., secondary]",
)
def stable_mask(gamma: Option = "alibi", context: Option = None) -> AttentionSpec:
    return AttentionSpec(slots=(SuffixSlot(gamma=gamma, context=context),))


GRID = CatalogSection("Other similarities and normalizers")
AFTER = "two maps (d, d) without bias, the same for q and k and for all heads, after rotation"
PHI = "nothing is learned; φ acts after rotation"


@GRID.line(
    formula="A = σ(s)",
    rows="anything between 0 and the number of visible tokens",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="sink 0.44 %, loss 3.70 (60M); 2.46 %, 3.10 (1B) [Gu et al.]",
)
def sigmoid(bias: Option = 0.0) -> AttentionSpec:
    return AttentionSpec(normalizer=Sigmoid(bias=bias))


@GRID.line(
    formula="A = σ(s) / Σ σ(s)",
    rows="tokens sum to 1",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="sink 30.24 %, loss 3.74 [Gu et al.]",
)
def sigmoid_normalized() -> AttentionSpec:
    return AttentionSpec(normalizer=Sigmoid(normalized=True))


@GRID.line(
    formula="A = σ(s) / (Σ σ(s)^p)^(1/p)",
    rows="at most 1 for p ≤ 1; from 1 to n^(1−1/p) for p ≥ 1",
    source="Gu et al. 2025, section 7",
    effect="trains for p > 1, with massive activations [Gu et al.]",
)
def sigmoid_power(p: Option = 2.0) -> AttentionSpec:
    return AttentionSpec(normalizer=PowerSigmoid(p=p))


@GRID.line(
    formula="A = σ(s − log n + b), n visible tokens",
    rows="n / (1 + n) for zero scores",
    source="Ramapuram et al. 2024 (2409.04431); their code adds −log of the context, one number for all queries",
)
def sigmoid_bias(bias: Option = 0.0) -> AttentionSpec:
    return AttentionSpec(normalizer=Sigmoid(bias=bias, minus_log_n=True))


@GRID.line(
    formula="A = elu(s) + 1",
    rows="any positive number",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="sink 0.80 %, loss 3.69 [Gu et al.]",
)
def elu() -> AttentionSpec:
    return AttentionSpec(normalizer=Elu())


@GRID.line(
    formula="A = (elu(s) + 1) / Σ (elu(s) + 1)",
    rows="tokens sum to 1",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="fails to converge [Gu et al.]",
)
def elu_normalized() -> AttentionSpec:
    return AttentionSpec(normalizer=Elu(normalized=True))


@GRID.line(
    formula="A = relu(s) / n, n visible tokens (or without n)",
    rows="any number from 0",
    source="Guo et al. 2024a (2410.13835); Wortsman et al. 2023b (2309.08586), relu / L",
    effect="removes the sink's mechanism in Bigram-Backcopy [Guo et al.]",
)
def relu(over_n: Option = True, normalized: Option = False) -> AttentionSpec:
    return AttentionSpec(normalizer=Relu(over_n=over_n, normalized=normalized))


@GRID.line(
    formula="A = φ(q)·φ(k) / √d, φ = elu + 1",
    rows="any positive number",
    source="Gu et al. 2025, Tables 6 and 15",
    acts=PHI,
    effect="fails to converge [Gu et al.]",
)
def kernel_elu() -> AttentionSpec:
    return AttentionSpec(similarity=Kernel(feature="elu"), normalizer=Linear())


@GRID.line(
    formula="A = φ(q)·φ(k) / Σ φ(q)·φ(k), φ = elu + 1",
    rows="tokens sum to 1",
    source="Gu et al. 2025, Tables 6 and 15; Katharopoulos et al. 2020",
    acts=PHI,
    effect="sink 53.65 %, loss 4.19 [Gu et al.]",
)
def kernel_elu_normalized() -> AttentionSpec:
    return AttentionSpec(similarity=Kernel(feature="elu"), normalizer=Linear(divisor="sum"))


@GRID.line(
    formula="A = q·k / √d",
    rows="any number, also negative",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="sink 0.00 %, loss 3.99 [Gu et al.]",
)
def kernel_identity() -> AttentionSpec:
    return AttentionSpec(normalizer=Linear())


@GRID.line(
    formula="A = s / max(|Σ s|, 1), s = q·k / √d",
    rows="from −1 to 1",
    source="Gu et al. 2025, Tables 6 and 15",
    effect="fails to converge [Gu et al.]",
)
def kernel_identity_normalized() -> AttentionSpec:
    return AttentionSpec(normalizer=Linear(divisor="abs_sum"))


@GRID.line(
    formula="A = φ(q)·φ(k) / √d, φ(x) = W₂ relu(W₁ x)",
    rows="any number, also negative",
    source="Gu et al. 2025, Tables 6 and 15",
    acts=AFTER,
    effect="sink 0.74 %, loss 3.91 [Gu et al.]",
)
def kernel_mlp() -> AttentionSpec:
    return AttentionSpec(similarity=Kernel(feature="mlp"), normalizer=Linear())


@GRID.line(
    formula="A = s / max(|Σ s|, 1), s = φ(q)·φ(k) / √d, φ(x) = W₂ relu(W₁ x)",
    rows="from −1 to 1",
    source="Gu et al. 2025, Tables 6 and 15",
    acts=AFTER,
    effect="sink 0.19 %, loss 3.85 [Gu et al.]",
)
def kernel_mlp_normalized() -> AttentionSpec:
    return AttentionSpec(similarity=Kernel(feature="mlp"), normalizer=Linear(divisor="abs_sum"))


BIASES = CatalogSection("Key and value biases")
PER_HEAD = "per key-value head, never rotated"
SHARED = "one for all heads of a layer, never rotated"
BOTH, KEY_ONLY = "slot and tokens sum to 1", "slot and tokens sum to 1; the slot carries no value"


@BIASES.line(
    formula="A = softmax([q·k*, q·K] / √d), y = A [v*; V]",
    rows=BOTH,
    source="Gu et al. 2025, Table 4; Sun et al. 2024",
    acts=f"k*, v* {PER_HEAD}",
    effect="Sink_* 72.76 %, Sink₁ 0.04 %, loss 3.72 [Gu et al.]",
)
def kv_bias() -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(value="learned"),))


@BIASES.line(
    formula="A = softmax([q·k*, q·K] / √d), y = A [v*; V]",
    rows=BOTH,
    source="Gu et al. 2025, appendix",
    acts=f"k*, v* {SHARED}",
    effect="Sink_* 56.61 %, Sink₁ 12.44 % [Gu et al.]",
)
def kv_bias_shared() -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(value="learned", shared=True),))


@BIASES.line(
    formula="A = softmax([q·k*, q·K] / √d), y = A [0; V]",
    rows=KEY_ONLY,
    source="Gu et al. 2025, Table 4",
    acts=f"k* {PER_HEAD}",
    effect="Sink_* 73.34 %, Sink₁ 0.00 %, loss 3.72; no massive activations [Gu et al.]",
)
def k_bias() -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(),))


@BIASES.line(
    formula="A = softmax([q·k*, q·K] / √d), y = A [0; V]",
    rows=KEY_ONLY,
    source="Gu et al. 2025, appendix",
    acts=f"k* {SHARED}",
    effect="Sink_* 68.31 %, Sink₁ 0.23 % [Gu et al.]",
)
def k_bias_shared() -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(shared=True),))


@BIASES.line(
    formula="y = A [m·v'; V], v' = [1, 0, …, 0] (first) or [1, …, 1] / √d (uniform), not learned",
    rows=BOTH,
    source="Gu et al. 2025, Table 5",
    acts=f"k* {PER_HEAD}",
    effect="Sink_* 70.03, 44.43, 1.51 % (first), 69.74, 27.99, 0 % (uniform) for m = 1, 5, 20 [Gu et al.]",
)
def k_bias_fixed_v(direction: Option = "first", norm: Option = 1.0) -> AttentionSpec:
    fixed = FixedValue(direction=direction, norm=norm)
    return AttentionSpec(slots=(KeySlot(value=fixed),))


@BIASES.line(
    formula="k* learns in its first d_a channels, the others are 0; v* = 0",
    rows=KEY_ONLY,
    source="Gu et al. 2025, Table 13",
    acts=f"k* {PER_HEAD}",
    effect="Sink_* 32.18, 30.88, 30.94, 31.39, 23.30, 51.23, 69.19 % for d_a = 1, 2, 4, …, 64 [Gu et al.]",
)
def k_bias_lowrank(d_a: Option = 1) -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(d_a=d_a),))


@BIASES.line(
    formula="y = softmax(s) V + v*",
    rows="tokens sum to 1",
    source="Gu et al. 2025, Table 4",
    acts="v* per query head, after aggregation",
    effect="Sink₁ 17.53 %, loss 3.73, as without it [Gu et al.]",
)
def v_bias() -> AttentionSpec:
    return AttentionSpec(output=(ValueBias(),))


@BIASES.line(
    formula="A = softmax([q·W_K ĉ, q·K] / √d), y = A [W_V ĉ; V], ĉ = g ⊙ c / rms(c) for n latents c",
    rows="slots and tokens sum to 1",
    source="openPangu-2.0 (Huawei 2026)",
    acts="n latents, g, W_K and W_V per layer; keys never rotated",
)
def latent_sinks(count: Option = 128, rank: Option = None) -> AttentionSpec:
    return AttentionSpec(slots=(LatentSlots(count=count, rank=rank),))


GATES = CatalogSection("Gates and norms")
BEYOND = CatalogSection("Beyond the paper")
ONE = "tokens sum to 1"


@GATES.line(
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


@GATES.line(
    formula="y = σ(W x + b) ⊙ softmax(s) V",
    rows=ONE,
    source="Qiu et al. 2025 (2505.06708), as `elementwise_attn_output_gate` of their code, which has no b",
    acts="per channel of every head, on the block's input, after aggregation",
)
def gated_elementwise(openness: Option = 0.5) -> AttentionSpec:
    return AttentionSpec(output=(ElementGate(openness=openness),))


@GATES.line(
    formula="y = softmax(s) (σ(W x + b) ⊙ V)",
    rows=ONE,
    source="Qiu et al. 2025 (2505.06708), their gate after the value projection; not compared with code",
    acts="per channel of every key-value head (or one per head), on the block's input at the value's token",
)
def gated_value(openness: Option = 0.5, per_head: Option = False) -> AttentionSpec:
    return AttentionSpec(value_gate=ValueGate(openness=openness, per_head=per_head))


@GATES.line(
    formula="s = norm(q)·norm(k) / √d",
    rows=ONE,
    source="Dehghani et al. 2023 (2302.05442); Wortsman et al. 2023a (2309.14322); gains not compared with code",
    acts="one gain per channel for q and one for k, the same for all heads, before rotation",
)
def qk_norm(norm: Option = "rmsnorm") -> AttentionSpec:
    return AttentionSpec(query_key=QueryKeyNorm(norm=norm))


@GATES.line(
    formula="s = c_h · cos(q, k)",
    rows=ONE,
    source="Henry et al. 2020 (2010.04245), with c per head as in x-transformers",
    acts="c per query head; lengths are taken off before rotation",
)
def cosine(initial: Option = 10.0) -> AttentionSpec:
    return AttentionSpec(query_key=CosineScores(initial=initial))


@GATES.line(
    formula="y = softmax(s) (σ(w_h·v + b_h) v) (at = value), y_t = σ(w_h·v_t + b_h) · (softmax(s) V)_t (at = output)",
    rows=ONE,
    source="2510.09017, equation 6 and appendix B, by third-party notes; b is ours",
    acts="w and b per key-value head (value) or query head (output), on the value itself",
)
def gated_by_value(at: Option = "value", openness: Option = 0.5) -> AttentionSpec:
    if at == "value":
        return AttentionSpec(value_gate=ValueStateGate(openness=openness))
    if at == "output":
        return AttentionSpec(output=(OwnValueGate(openness=openness),))
    raise unknown("place of a gate", str(at), ("value", "output"))


@GATES.line(
    formula="y = softmax(s) V forwards; ∂L/∂v is that of φ v: φ = strength, or strength / rms(v)",
    rows=ONE,
    source="2603.17771, the backward-only control of V-scale, by the authors' answers; their φ was not found",
)
def value_gradient(phi: Option = "constant", strength: Option = 0.5) -> AttentionSpec:
    return AttentionSpec(value_gate=ValueGradient(phi=phi, strength=strength))


@GATES.line(
    formula="y_h = γ_h ⊙ (softmax(s) V)_h / rms((softmax(s) V)_h)",
    rows=ONE,
    source="2605.06611, by excerpts",
    acts="γ per channel of every head, after aggregation",
)
def head_norm() -> AttentionSpec:
    return AttentionSpec(output=(HeadNorm(),))


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


SECTIONS: tuple[CatalogSection, ...] = (SOFTMAXES, GRID, BIASES, GATES, BEYOND)
ENTRIES: Registry[Entry] = Registry(
    "operation",
    {name: entry for section in SECTIONS for name, entry in section.entries.items()},
    "attention operation",
)


class _Specs(Mapping[str, AttentionSpec]):
    """The operation of each line with its default options."""

    def __getitem__(self, name: str) -> AttentionSpec:
        return ENTRIES[name].spec

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)


CATALOG = _Specs()
# Other papers' names of the same operation. The explicit attention bias of Sun et al. 2024 puts its learned pair after
# the keys, that of Gu et al. before them: the order of keys does not matter to a softmax.
ALIASES = {"explicit_attention_bias": "kv_bias"}


def resolve(attention: AttentionSpec | Mapping[str, Any] | str | object) -> AttentionSpec:
    """A spec from a spec, its dict, its name in the catalog, or `{"name": ..., option: value, ...}`.

    Raises `InputError` for anything else, and for unknown names and options, with the nearest one.
    """
    if isinstance(attention, AttentionSpec):
        return attention
    if not isinstance(attention, str | Mapping):
        raise InputError(f"attention = {attention!r}: expected a name such as 'sigmoid', its options, or a spec's dict")
    named = {"name": attention} if isinstance(attention, str) else {str(key): attention[key] for key in attention}
    if "name" not in named:
        return AttentionSpec.from_dict(named)
    name = str(named.pop("name"))
    name, package = ALIASES.get(name, name), named.pop(PACKAGE, None)
    if name not in ENTRIES:
        if package is not None:
            raise missing(f"the attention operation '{name}'", package)
        raise unknown("attention operation", name, ENTRIES)
    return ENTRIES[name].make(**named)


def named(spec: AttentionSpec) -> dict[str, Any] | None:
    """`{"name": ..., option: value, ...}`, which `resolve` turns into this spec; None if no line makes it."""
    for name, listed in CATALOG.items():
        if listed == spec:
            return {"name": name, **_package(name)}
    for name, entry in ENTRIES.items():
        if entry.options and (options := entry.options_of(spec)) is not None:
            return {"name": name, **options, **_package(name)}
    return None


def _package(name: str) -> dict[str, str]:
    """The entry in a saved spec for a line that another package registers."""
    return {PACKAGE: package_of(ENTRIES.added[name])} if name in ENTRIES.added else {}


def sections() -> tuple[CatalogSection, ...]:
    """The sections of the catalog, plus one for lines of other packages if there are any."""
    others = CatalogSection("From other packages")
    others.entries = {name: entry for name, entry in ENTRIES.items() if name not in ENTRIES.own}
    return (*SECTIONS, others) if others.entries else SECTIONS


def name_of(spec: AttentionSpec) -> str:
    """The catalog name of a spec, with the options that are not the default: `softmax_scaled(alpha=0.2)`.

    `custom` for a spec that no line of the catalog makes.
    """
    if (line := named(spec)) is None:
        return "custom"
    options = ", ".join(f"{option}={value}" for option, value in line.items() if option not in ("name", PACKAGE))
    return f"{line['name']}({options})" if options else str(line["name"])
