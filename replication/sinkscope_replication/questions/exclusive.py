"""Where an output keeps nothing of its token's own value, does the token itself take the place of the sink?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
FEW = (3, 4, 5)
SINK = Has("sink_0", 3.0)
OURS = "our question: the source reports outliers or losses, and no sink rates"


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
    name="exclusive",
    asks="Where an output keeps nothing of its token's own value, does the token itself take the place of the sink?",
    source="Zhai 2026",
    base=STUDY,
    seeds=FEW,
    variations=(operation("softmax", seeds=BASE), operation("exclusive")),
    assertions=(fewer_with("exclusive", OURS),),
)
