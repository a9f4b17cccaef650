"""The catalogue: a line per attention operation. How to add one is in CONTRIBUTING.md."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.attention.normalizers import Sigmoid
from sinkscope.attention.outputs import ValueBias
from sinkscope.attention.slots import KeySlot, LogitSlot, ZeroSlot
from sinkscope.attention.spec import AttentionSpec


@dataclass(frozen=True)
class Entry:
    """A catalogue line: the value, its formula, what a row of weights sums to, and where it comes from."""

    spec: AttentionSpec
    formula: str
    rows: str
    source: str


ENTRIES: dict[str, Entry] = {
    "softmax": Entry(
        AttentionSpec(),
        "A = softmax(q·k / √d)",
        "tokens sum to 1",
        "A26; Vaswani et al. 2017",
    ),
    "softmax_off_by_one": Entry(
        AttentionSpec(slots=(ZeroSlot(),)),
        "A = exp(s) / (1 + Σ exp(s))",
        "tokens sum to less than 1; the rest goes to a slot without a value",
        "A24; Miller 2023, 'Attention is off by one'",
    ),
    "sink_logit": Entry(
        AttentionSpec(slots=(LogitSlot(),)),
        "A = exp(s) / (exp(b) + Σ exp(s)), b learned per head, 0 at the start",
        "tokens sum to less than 1; the rest goes to a slot without a value",
        "GPT-OSS, OpenAI 2025",
    ),
    "sigmoid": Entry(
        AttentionSpec(normalizer=Sigmoid()),
        "A = σ(q·k / √d)",
        "anything between 0 and the number of visible tokens",
        "A14; Gu et al. 2025, Table 6",
    ),
    "sigmoid_normalized": Entry(
        AttentionSpec(normalizer=Sigmoid(normalized=True)),
        "A = σ(s) / Σ σ(s)",
        "tokens sum to 1",
        "A15; Gu et al. 2025, Table 6",
    ),
    "kv_bias": Entry(
        AttentionSpec(slots=(KeySlot(value="learned"),)),
        "A = softmax([q·k*, q·K] / √d), y = A [v*; V]",
        "slot and tokens sum to 1",
        "A7; Gu et al. 2025, Table 4; Sun et al. 2024",
    ),
    "k_bias": Entry(
        AttentionSpec(slots=(KeySlot(),)),
        "A = softmax([q·k*, q·K] / √d), y = A [0; V]",
        "slot and tokens sum to 1; the slot carries no value",
        "A8; Gu et al. 2025, Table 4",
    ),
    "v_bias": Entry(
        AttentionSpec(output=(ValueBias(),)),
        "y = softmax(q·k / √d) V + v*",
        "tokens sum to 1",
        "A9; Gu et al. 2025, Table 4",
    ),
}

CATALOG: dict[str, AttentionSpec] = {name: entry.spec for name, entry in ENTRIES.items()}


def name_of(spec: AttentionSpec) -> str:
    """The catalogue name of a spec; `custom` for one that has no line."""
    return next((name for name, listed in CATALOG.items() if listed == spec), "custom")
