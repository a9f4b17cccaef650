"""What models of 2026 train with: which of it removes massive activations, which the sink, which neither.

Sizes are compared with softmax's at equal validation loss, since a change that slows training delays both. Formulas
from what could be read of the sources; where these give numbers they are of models a hundred times as large. Two heads
and bf16 make a run half as long; with two heads sink and norms end close to those of `nano` (question `heads`).
"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Question,
    Variation,
    above_ratio,
    log_ratio_at_equal_loss,
    more_models,
)

STUDY = FromRecipe(job="replication")
NEW = range(13, 19)
SHORTER = {"model.num_attention_heads": 2, "precision": "bf16", "steps": 1100}
MASSIVE, MASS = "sink/hidden_norm_ratio", "sink/mass"
SINK = Has("sink_0", 3.0)
SOURCES = {
    "gated norm": "2601.22966: removes residual outliers",
    "head norm": "2605.06611: removes both",
    "gate from the value": "2510.09017, equation 6: removes both",
    "gate from the own value": "2510.09017, appendix B: removes both",
    "value gradient": "2603.17771, backward-only V-scale at 0.3B: massive 1916 to 607, sink .62 to .46",
}
CHANGES: dict[str, dict[str, Any]] = {
    "gated norm": {"model.norm": "gated_rmsnorm"},
    "head norm": {"attention": "head_norm"},
    "gate from the value": {"attention": "gated_by_value"},
    "gate from the own value": {"attention": {"name": "gated_by_value", "at": "output"}},
    "value gradient": {"attention": "value_gradient"},
}

remedies = Question(
    name="remedies",
    asks="Which of what 2026 trains with removes massive activations, which the sink, and which neither?",
    source="2601.22966; 2603.17771; 2605.06611; 2510.09017",
    base=STUDY,
    seeds=NEW,
    shown=("loss", "norm_ratio", "sink_mass", "sink_0", "kurtosis"),
    variations=(
        Variation("softmax", SHORTER),
        *(Variation(label, {**SHORTER, **changes}) for label, changes in CHANGES.items()),
    ),
    assertions=tuple(
        assertion
        for label, source in SOURCES.items()
        for assertion in (
            above_ratio(
                2.0,
                log_ratio_at_equal_loss("softmax", label, MASSIVE),
                f"{label}: massive activations",
                "at equal validation loss the first token's hidden norm over that of the others is more than twice as "
                f"large with softmax as with {label}",
                source,
            ),
            more_models(
                "softmax",
                label,
                SINK,
                f"{label}: fewer",
                f"fewer models have a sink with {label} than with softmax",
                source,
            ),
            above_ratio(
                2.0,
                log_ratio_at_equal_loss("softmax", label, MASS),
                f"{label}: sink mass",
                f"at equal validation loss the sink mass is more than twice as large with softmax as with {label}",
                source,
            ),
        )
    ),
    note="Where the claim about massive activations holds and those about the sink do not, the two come apart.",
)

QUESTIONS = (remedies,)
