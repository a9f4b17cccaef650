"""Questions about gates on what attention writes [X18]."""

from __future__ import annotations

from sinkscope.experiments.asserting import OURS, fewer_outliers, less_massive, less_sink
from sinkscope.experiments.effects import gap
from sinkscope.experiments.question import Question, above
from sinkscope.experiments.questions.operation import operation

BONDARENKO = "X18; Bondarenko et al. 2023, OPT-125M, from third parties' notes"
QIU = "X18; Qiu et al. 2025, from memory"

gated = Question(
    name="gated",
    asks="Does a head that can close a gate need a sink?",
    rows=("X18",),
    source=BONDARENKO,
    variations=(
        operation("softmax", infinity_norm=340.0, kurtosis=1778.0),
        operation("gated_head", infinity_norm=8.7, kurtosis=18.9),
    ),
    assertions=(
        *less_sink("gated_head", "softmax", f"X18; {OURS}", margin=1.0, margin_at_loss=0.0),
        fewer_outliers("gated_head", "softmax", f"{BONDARENKO}: 1778 and 18.9"),
        above(
            0.0,
            gap("infinity_norm", "softmax", "gated_head"),
            "smaller activations",
            "the largest activation, averaged over texts, is smaller",
            f"{BONDARENKO}: 340 and 8.7",
        ),
    ),
)

gated_by_channel = Question(
    name="gated-by-channel",
    asks="And where every channel has a gate of its own?",
    rows=("X18",),
    source=QIU,
    variations=(operation("softmax"), operation("gated_elementwise")),
    assertions=(
        *less_sink("gated_elementwise", "softmax", QIU),
        *less_massive("gated_elementwise", "softmax", QIU),
    ),
)

QUESTIONS = (gated, gated_by_channel)
