"""Learned keys and values that belong to no token."""

from __future__ import annotations

from sinkscope.attention.catalog.entry import Option, Section
from sinkscope.attention.outputs import ValueBias
from sinkscope.attention.slots import FixedValue, KeySlot, LatentSlots
from sinkscope.attention.spec import AttentionSpec

SECTION = Section("Key and value biases")
line = SECTION.line
PER_HEAD = "per key-value head, never rotated"
SHARED = "one for all heads of a layer, never rotated"
BOTH, KEY_ONLY = "slot and tokens sum to 1", "slot and tokens sum to 1; the slot carries no value"


@line(
    formula="A = softmax([q·k*, q·K] / √d), y = A [v*; V]",
    rows=BOTH,
    source="Gu et al. 2025, Table 4; Sun et al. 2024",
    acts=f"k*, v* {PER_HEAD}",
    effect="Sink_* 72.76 %, Sink₁ 0.04 %, loss 3.72 [Gu et al.]",
)
def kv_bias() -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(value="learned"),))


@line(
    formula="A = softmax([q·k*, q·K] / √d), y = A [v*; V]",
    rows=BOTH,
    source="Gu et al. 2025, appendix",
    acts=f"k*, v* {SHARED}",
    effect="Sink_* 56.61 %, Sink₁ 12.44 % [Gu et al.]",
)
def kv_bias_shared() -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(value="learned", shared=True),))


@line(
    formula="A = softmax([q·k*, q·K] / √d), y = A [0; V]",
    rows=KEY_ONLY,
    source="Gu et al. 2025, Table 4",
    acts=f"k* {PER_HEAD}",
    effect="Sink_* 73.34 %, Sink₁ 0.00 %, loss 3.72; no massive activations [Gu et al.]",
)
def k_bias() -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(),))


@line(
    formula="A = softmax([q·k*, q·K] / √d), y = A [0; V]",
    rows=KEY_ONLY,
    source="Gu et al. 2025, appendix",
    acts=f"k* {SHARED}",
    effect="Sink_* 68.31 %, Sink₁ 0.23 % [Gu et al.]",
)
def k_bias_shared() -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(shared=True),))


@line(
    formula="y = A [m·v'; V], v' = [1, 0, …, 0] (first) or [1, …, 1] / √d (uniform), not learned",
    rows=BOTH,
    source="Gu et al. 2025, Table 5",
    acts=f"k* {PER_HEAD}",
    effect="Sink_* 70.03, 44.43, 1.51 % (first), 69.74, 27.99, 0 % (uniform) for m = 1, 5, 20 [Gu et al.]",
)
def k_bias_fixed_v(direction: Option = "first", norm: Option = 1.0) -> AttentionSpec:
    fixed = FixedValue(direction=direction, norm=norm)
    return AttentionSpec(slots=(KeySlot(value=fixed),))


@line(
    formula="k* learns in its first d_a channels, the others are 0; v* = 0",
    rows=KEY_ONLY,
    source="Gu et al. 2025, Table 13",
    acts=f"k* {PER_HEAD}",
    effect="Sink_* 32.18, 30.88, 30.94, 31.39, 23.30, 51.23, 69.19 % for d_a = 1, 2, 4, …, 64 [Gu et al.]",
)
def k_bias_lowrank(d_a: Option = 1) -> AttentionSpec:
    return AttentionSpec(slots=(KeySlot(d_a=d_a),))


@line(
    formula="y = softmax(s) V + v*",
    rows="tokens sum to 1",
    source="Gu et al. 2025, Table 4",
    acts="v* per query head, after aggregation",
    effect="Sink₁ 17.53 %, loss 3.73, as without it [Gu et al.]",
)
def v_bias() -> AttentionSpec:
    return AttentionSpec(output=(ValueBias(),))


@line(
    formula="A = softmax([q·W_K ĉ, q·K] / √d), y = A [W_V ĉ; V], ĉ = g ⊙ c / rms(c) for n latents c",
    rows="slots and tokens sum to 1",
    source="openPangu-2.0 (Huawei 2026)",
    acts="n latents, g, W_K and W_V per layer; keys never rotated",
)
def latent_sinks(count: Option = 128, rank: Option = None) -> AttentionSpec:
    return AttentionSpec(slots=(LatentSlots(count=count, rank=rank),))
