"""Which similarities do not train with which normalizer?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
FAILS = Has("loss", 4.1, diverged=True)
TABLE_15 = "Gu et al. 2025, Tables 6 and 15"


def operation(name: str, seeds: Any = None, **published: float) -> Variation:
    """An operation of the catalog."""
    return Variation(name, {"attention": name}, published, seeds)


FAILING = ("elu_normalized", "kernel_elu", "kernel_identity_normalized")

QUESTION = Question(
    name="failing",
    asks="Which similarities do not train with which normalizer?",
    source=TABLE_15,
    base=STUDY,
    seeds=range(13, 16),
    variations=(operation("softmax", NEW_BASE, sink_0=18.18, loss=3.73), *map(operation, FAILING)),
    assertions=(
        most_models(
            FAILING,
            FAILS,
            "fail",
            "most models with these diverge or end more than a nat above softmax",
            f"{TABLE_15}: fails to converge",
        ),
    ),
)
