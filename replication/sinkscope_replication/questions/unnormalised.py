"""Does the sink stay away from operations whose rows need not sum to one?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models

STUDY = FromRecipe(job="replication")
BASE = range(13)

SINK, MASSIVE = Has("sink_0", 3.0), Has("norm_ratio", 4.0)

TABLE_15 = "Gu et al. 2025, Tables 6 and 15"


def operation(name: str, seeds: Any = None, **published: float) -> Variation:
    """An operation of the catalog."""
    return Variation(name, {"attention": name}, published, seeds)


SOFTMAX = operation("softmax", BASE, sink_0=18.18, loss=3.73)
UNNORMALIZED = ("elu", "kernel_identity", "kernel_mlp", "kernel_mlp_normalized")

QUESTION = Question(
    name="unnormalised",
    asks="Does the sink stay away from operations whose rows need not sum to one?",
    source=TABLE_15,
    base=STUDY,
    seeds=(3, 4, 5),
    variations=(
        SOFTMAX,
        operation("elu", sink_0=0.80, loss=3.69),
        operation("kernel_identity", sink_0=0.00, loss=3.99),
        operation("kernel_mlp", sink_0=0.74, loss=3.91),
        operation("kernel_mlp_normalized", sink_0=0.19, loss=3.85),
    ),
    assertions=(
        more_models(
            "softmax",
            UNNORMALIZED,
            SINK,
            "fewer",
            "fewer models have a sink with ELU, identity and MLP kernels than with softmax",
            TABLE_15,
        ),
        more_models(
            "softmax",
            UNNORMALIZED,
            MASSIVE,
            "fewer are massive",
            "fewer models have a massive activation with these than with softmax",
            "Gu et al. 2025, section 7",
        ),
    ),
)
