"""Does linear attention have a sink where its rows sum to one?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above, above_ratio, gap, log_ratio, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
TABLE_15 = "Gu et al. 2025, Tables 6 and 15"


def operation(name: str, seeds: Any = None, **published: float) -> Variation:
    """An operation of the catalog."""
    return Variation(name, {"attention": name}, published, seeds)


SOFTMAX = operation("softmax", BASE, sink_0=18.18, loss=3.73)

QUESTION = Question(
    name="normalised-kernel",
    asks="Does linear attention have a sink where its rows sum to one?",
    source=TABLE_15,
    base=STUDY,
    seeds=range(3, 10),
    variations=(SOFTMAX, operation("kernel_elu_normalized", sink_0=53.65, loss=4.19)),
    assertions=(
        most_models(
            "kernel_elu_normalized",
            SINK,
            "a sink",
            "most models with normalized linear attention have a sink",
            TABLE_15,
        ),
        above_ratio(
            1.0,
            log_ratio("sink_mass", "kernel_elu_normalized", "softmax"),
            "stronger",
            "normalized linear attention has more sink mass than softmax",
            TABLE_15,
        ),
        above(
            0.1,
            gap("loss", "kernel_elu_normalized", "softmax"),
            "worse",
            "the validation loss of normalized linear attention ends more than .1 nats above softmax's",
            TABLE_15,
            symmetric=True,
        ),
    ),
)
