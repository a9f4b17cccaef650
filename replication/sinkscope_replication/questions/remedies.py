"""What models of 2026 train with: which of it removes massive activations, which the sink, which neither.

Each against softmax at equal validation loss, since a change that slows training delays both. Formulas from what could
be read of the sources; where these give numbers they are of models a hundred times as large.
"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_ratio_at_equal_loss

STUDY = FromRecipe(job="replication")
NEW_BASE, NEW = range(13, 25), range(13, 19)
MASSIVE, MASS = "sink/hidden_norm_ratio", "sink/mass"
SOURCES = {
    "gated norm": "2601.22966: removes residual outliers",
    "pre-affine norm": "2601.22966: absorbs residual outliers into λ",
    "head norm": "2605.06611: removes both",
    "gate from the value": "2510.09017, equation 6: removes both",
    "gate from the own value": "2510.09017, appendix B: removes both",
    "value gradient": "2603.17771, backward-only V-scale at 0.3B: massive 1916 to 607, sink .62 to .46",
    "entmax": "our question: weights that can be exactly zero",
    "cosine": "our question: logits that are bounded",
    "TWEO": "2511.23225: removes massive activations",
}
CHANGES: dict[str, dict[str, Any]] = {
    "gated norm": {"model.norm": "gated_rmsnorm"},
    "pre-affine norm": {"model.norm": "preaffine_rmsnorm"},
    "head norm": {"attention": "head_norm"},
    "gate from the value": {"attention": "gated_by_value"},
    "gate from the own value": {"attention": {"name": "gated_by_value", "at": "output"}},
    "value gradient": {"attention": "value_gradient"},
    "entmax": {"attention": "entmax"},
    "cosine": {"attention": "cosine"},
    "TWEO": {"loss.activation_penalty.kind": "tweo", "loss.activation_penalty.strength": 0.01},
}

remedies = Question(
    name="remedies",
    asks="Which of what 2026 trains with removes massive activations, which the sink, and which neither?",
    source="2601.22966; 2603.17771; 2605.06611; 2510.09017; 2511.23225",
    base=STUDY,
    seeds=NEW,
    shown=("loss", "norm_ratio", "sink_mass", "sink_0", "kurtosis"),
    variations=(
        Variation("softmax", seeds=NEW_BASE),
        *(Variation(label, changes) for label, changes in CHANGES.items()),
    ),
    assertions=tuple(
        above_ratio(
            2.0,
            log_ratio_at_equal_loss("softmax", label, curve),
            f"{label}: {name}",
            f"at equal validation loss {what} with softmax is more than twice that with {label}",
            source,
        )
        for label, source in SOURCES.items()
        for name, curve, what in (
            ("massive activations", MASSIVE, "the first token's hidden norm over that of the others"),
            ("sink", MASS, "the sink mass"),
        )
    ),
    note="Where a claim about massive activations holds and the one about the sink does not, the two come apart.",
)

QUESTIONS = (remedies,)
