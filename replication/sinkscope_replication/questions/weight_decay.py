"""Is the sink strongest at a moderate weight decay?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above_ratio, log_ratio, more_models, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
TABLE_2 = "Gu et al. 2025, Table 2"

# Weight decay: the paper's sink rate and loss.
DECAYS = {
    0.0: (15.20, 3.72),
    0.001: (15.39, 3.72),
    0.01: (15.23, 3.72),
    0.1: (18.18, 3.73),
    0.5: (41.08, 3.80),
    1.0: (37.71, 3.90),
    2.0: (6.13, 4.23),
    5.0: (0.01, 5.24),
}


def decayed(decay: float, seeds: Any = None) -> Variation:
    """Training with another weight decay."""
    sink, loss = DECAYS[decay]
    return Variation(f"{decay:g}", {"optimizer.weight_decay": decay}, {"sink_0": sink, "loss": loss}, seeds)


QUESTION = Question(
    name="weight-decay",
    asks="Is the sink strongest at a moderate weight decay?",
    source=TABLE_2,
    base=STUDY,
    variations=(
        decayed(0.0, (0, 3, 4, 5, 6, 7, 8)),
        decayed(0.1, BASE),
        decayed(0.5, range(3, 9)),
        decayed(2.0, (0, 3, 4, 5)),
    ),
    assertions=(
        above_ratio(
            1.0,
            log_ratio("sink_mass", "0.5", "0.1"),
            "most at a moderate one",
            "the sink mass is larger with a decay of .5 than with .1",
            TABLE_2,
        ),
        more_models(
            "0.1", "2", SINK, "too much weakens it", "more models have a sink with a decay of .1 than with 2", TABLE_2
        ),
        most_models("0", SINK, "not needed", "most models have a sink without decay", TABLE_2),
    ),
    note="By what it costs, a decay is stronger here than in the paper: from .1 to .5 the loss rises by about .2 nats, "
    "there by .07.",
)
