"""Do attention on the BOS and the drain of its value come together?"""

from __future__ import annotations

import math
from functools import partial

from sinkscope.experiments import Observed, Question, Variation, curve_correlation, most_models, task

GUO = "Guo et al. 2024a"
STARTED = "Runs start from torch's N(0, 1) embeddings, as in the authors' code; smaller ones learn without a sink."


def correlated(run: Observed, curve: str, sign: int) -> bool | None:
    """Whether a curve follows the attention on the BOS: a rank correlation beyond .5 in the direction of `sign`."""
    value = sign * curve_correlation("run", "task/bos_attention", curve)({"run": run})
    return None if math.isnan(value) else value > 0.5


on_backcopy = partial(
    Question,
    source=GUO,
    base=task("bigram_backcopy"),
    shown=("excess_triggers", "excess_others", "bos_attention", "output_ratio", "value_ratio", "norm_ratio"),
    note=STARTED,
    seeds=7,
)

QUESTION = on_backcopy(
    name="backcopy-dynamics",
    asks="Do attention on the BOS and the drain of its value come together?",
    variations=(Variation("AdamW"),),
    assertions=(
        most_models(
            "AdamW",
            lambda run: correlated(run, "task/value_ratio", -1),
            "together",
            "in most models the BOS's value shortens as its attention grows: rank correlation below −.5",
            GUO,
        ),
        most_models(
            "AdamW",
            lambda run: correlated(run, "task/logit_gap", 1),
            "logits grow",
            "in most models the BOS's logits rise above the others' as its attention grows: rank correlation above .5",
            GUO,
        ),
    ),
)
