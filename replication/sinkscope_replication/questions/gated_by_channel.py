"""And where every channel has a gate of its own?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
QIU = "Qiu et al. 2025, from memory"


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
    name="gated-by-channel",
    asks="And where every channel has a gate of its own?",
    source=QIU,
    base=STUDY,
    seeds=3,
    variations=(operation("softmax", seeds=BASE), operation("gated_elementwise")),
    assertions=(fewer_with("gated_elementwise", QIU),),
)
