"""Every operation under test: each line of the catalog with its defaults, and with its options set to others."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sinkscope.attention as zoo

from .problems import MASKS_AND_HEADS


@dataclass(frozen=True)
class Variant:
    """A line of the catalog with some options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    @cached_property
    def spec(self) -> zoo.AttentionSpec:
        return zoo.ENTRIES[self.name].make(**self.options)

    @property
    def chosen(self) -> dict[str, Any]:
        """Its options, defaults included."""
        return {**zoo.ENTRIES[self.name].options, **self.options}


# Values that change what is computed. Options that only set starting values are tried in test_starts.py.
OTHERS: dict[str, list[dict[str, Any]]] = {
    "softmax_scaled": [{"alpha": 2.0}],
    "softmax_power": [{"p": 3.0}],
    "sink_logit": [{"reads_input": True}],
    "clipped_softmax": [{"gamma": -0.1, "zeta": 1.1}, {"alpha": 0.4}],
    "softpick": [{"epsilon": 1e-6}],
    "stable_mask": [{"gamma": 0.3, "context": 310}, {"gamma": 0.0}],
    "sigmoid": [{"bias": -1.5}],
    "sigmoid_power": [{"p": 0.5}],
    "sigmoid_bias": [{"bias": 0.5}],
    "relu": [{"over_n": False}, {"normalized": True}],
    "k_bias_fixed_v": [{"direction": "uniform", "norm": 5.0}],
    "k_bias_lowrank": [{"d_a": 3}],
    "latent_sinks": [{"count": 5, "rank": 3}],
    "gated_head": [
        {"reads": 3},
        {"reads": "all"},
        {"reads": "nothing"},
        {"mlp_width": 3},
        {"reads": "all", "mlp_width": 3},
    ],
    "gated_value": [{"per_head": True}],
    "entmax": [{"alpha": 2.0}, {"alpha": 1.2}],
    "gated_by_value": [{"at": "output"}],
    "value_gradient": [{"phi": "inverse_rms", "strength": 2.0}],
    "qk_norm": [{"norm": "layernorm"}],
    "differential": [{"lambda_init": 0.4}],
}
STARTING_VALUES = {
    ("sink_logit", "initial"),
    ("first_key_logit", "initial"),
    ("gated_head", "openness"),
    ("gated_head", "initial_std"),
    ("gated_elementwise", "openness"),
    ("gated_value", "openness"),
    ("scalable_softmax", "initial"),
    ("gated_by_value", "openness"),
    ("cosine", "initial"),
    ("forgetting_gate", "openness"),
}

# One operation for each code path; the rest of the catalogue varies what these do.
KINDS = [
    "softmax",
    "softmax_power",
    "sigmoid_bias",
    "relu",
    "kernel_elu_normalized",
    "kv_bias",
    "stable_mask",
    "softpick",
    "gated_value",
    "scalable_softmax",
    "forgetting_gate",
    "differential",
    "stick_breaking",
    "first_key_logit",
    "latent_sinks",
    "exclusive",
    "entmax",
    "gated_by_value",
]
ENTRIES = [Variant(name) for name in zoo.ENTRIES]
VARIANTS = ENTRIES + [Variant(name, options) for name, several in OTHERS.items() for options in several]
MASKED = [
    (variant, mask, kv_heads)
    for variant in VARIANTS
    for mask, kv_heads in MASKS_AND_HEADS
    if mask == "document" or variant.name in KINDS
]
"""`KINDS`, with all their options, under every mask; the others under the hardest mask alone, with grouped heads."""


def untried_options() -> set[tuple[str, str]]:
    """Options of the catalog that no variant sets."""
    offered = {(name, option) for name, entry in zoo.ENTRIES.items() for option in entry.options}
    tried = {(name, option) for name, several in OTHERS.items() for options in several for option in options}
    return offered - tried - STARTING_VALUES
