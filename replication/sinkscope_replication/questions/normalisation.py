"""Is it the softmax's normalization that makes the sink?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, below, gap, more_models

STUDY = FromRecipe(job="replication")
BASE = range(13)

SINK, MASSIVE = Has("sink_0", 3.0), Has("norm_ratio", 4.0)

TABLE_6 = "Gu et al. 2025, Table 6"
FIGURE_8 = "Gu et al. 2025, Figure 8"


def operation(name: str, seeds: Any = None, **published: float) -> Variation:
    """An operation of the catalog."""
    return Variation(name, {"attention": name}, published, seeds)


SOFTMAX = operation("softmax", BASE, sink_0=18.18, loss=3.73)

QUESTION = Question(
    name="normalisation",
    asks="Is it the softmax's normalization that makes the sink?",
    source=TABLE_6,
    base=STUDY,
    seeds=6,
    variations=(
        SOFTMAX,
        operation("sigmoid", sink_0=0.44, loss=3.70),
        operation("sigmoid_normalized", sink_0=30.24, loss=3.74),
    ),
    assertions=(
        more_models("softmax", "sigmoid", SINK, "fewer", "fewer models have a sink with sigmoid than softmax", TABLE_6),
        more_models(
            "sigmoid_normalized",
            "sigmoid",
            SINK,
            "added back",
            "more models have a sink where sigmoid's rows are normalized than where they are not",
            TABLE_6,
        ),
        more_models(
            "softmax",
            "sigmoid",
            MASSIVE,
            "fewer are massive",
            "fewer models have a massive activation with sigmoid than with softmax",
            FIGURE_8,
        ),
        more_models(
            "sigmoid_normalized",
            "sigmoid",
            MASSIVE,
            "added back: massive",
            "more models have a massive activation where sigmoid's rows are normalized than where they are not",
            FIGURE_8,
        ),
        below(
            0.05,
            gap("loss", "sigmoid", "softmax"),
            "no cost",
            "the validation loss with sigmoid ends less than .05 nats above softmax's",
            TABLE_6,
            symmetric=True,
        ),
    ),
    note="For the metric the weights of a row are divided by their sum, as in the paper.",
)
