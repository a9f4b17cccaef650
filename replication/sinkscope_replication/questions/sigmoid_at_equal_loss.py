"""Do fewer sigmoid models have a sink when they have come to softmax's loss?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models, times

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
TABLE_6 = "Gu et al. 2025, Table 6"


def operation(name: str, seeds: Any = None, **published: float) -> Variation:
    """An operation of the catalog."""
    return Variation(name, {"attention": name}, published, seeds)


SOFTMAX = operation("softmax", BASE, sink_0=18.18, loss=3.73)
TWICE = {"attention": "sigmoid_bias", "steps": times(2.0)}

QUESTION = Question(
    name="sigmoid-at-equal-loss",
    asks="Do fewer sigmoid models have a sink when they have come to softmax's loss?",
    source="Gu et al. 2025, Table 6 and appendix; Ramapuram et al. 2024",
    base=STUDY,
    seeds=(3, 4, 5),
    variations=(
        SOFTMAX,
        Variation("sigmoid, bias, twice", TWICE),
        Variation("sigmoid, bias, twice, lr x 2.5", {**TWICE, "optimizer.lr": times(2.5)}),
    ),
    assertions=(
        more_models(
            "softmax",
            ("sigmoid, bias, twice", "sigmoid, bias, twice, lr x 2.5"),
            SINK,
            "fewer",
            "fewer models have a sink with sigmoid after twice the steps than with softmax",
            TABLE_6,
        ),
    ),
    note="The published rates are of sigmoid attention without a bias, at as many steps as softmax's.",
)
