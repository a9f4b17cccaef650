"""How does the sink depend on weight decay, from none to 5?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Question, Variation, above, above_ratio, gap, rising

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
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
    name="weight-decays",
    asks="How does the sink depend on weight decay, from none to 5?",
    source=TABLE_2,
    base=STUDY,
    seeds=NEW,
    variations=tuple(decayed(decay, NEW_BASE if decay == 0.1 else None) for decay in DECAYS),
    assertions=(
        above_ratio(
            1.0,
            rising("sink_mass", ("0", "0.1", "0.5"), log=True),
            "rises to a moderate one",
            "the sink mass rises from no decay to .1 and .5",
            TABLE_2,
        ),
        above(
            0.05,
            gap("loss", "2", "0.5"),
            "loss",
            "the validation loss with a decay of 2 ends more than .05 nats above that with .5",
            TABLE_2,
            symmetric=True,
        ),
    ),
)
