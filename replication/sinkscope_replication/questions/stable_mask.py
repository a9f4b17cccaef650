"""Does giving mass to the future, as StableMask does, take the place of the sink?"""

from __future__ import annotations

import math
from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above, gap, more_models

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
SINK = Has("sink_0", 3.0)
OURS = "our question: the source reports outliers or losses, and no sink rates"
YIN = "Yin et al. 2024, from third parties' notes"


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


def fewer_with(label: str, source: str, what: str = "") -> Any:
    """The claim that fewer models have a sink with an operation than with softmax."""
    return more_models(
        "softmax", label, SINK, "fewer", f"fewer models have a sink with {what or label} than with softmax", source
    )


QUESTION = Question(
    name="stable-mask",
    asks="Does giving mass to the future, as StableMask does, take the place of the sink?",
    source=YIN,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, loss=math.log(22.5)),
        operation("stable_mask", loss=math.log(21.1)),
    ),
    assertions=(
        fewer_with("stable_mask", OURS),
        above(
            0.0,
            gap("loss", "softmax", "stable_mask"),
            "better",
            "the validation loss is lower with StableMask",
            YIN,
            symmetric=True,
        ),
    ),
)
