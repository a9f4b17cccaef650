"""Does softmax-off-by-one remove the sink?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)


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
    name="off-by-one",
    asks="Does softmax-off-by-one remove the sink?",
    source="Miller 2023; Kaul et al. 2024",
    base=STUDY,
    seeds=6,
    variations=(
        operation("softmax", seeds=BASE, first_share=33.3, kurtosis=140.0),
        operation("softmax_off_by_one", first_share=2.2, kurtosis=244.7),
    ),
    assertions=(fewer_with("softmax_off_by_one", "Kaul et al. 2024"),),
    note="With a fixed BOS the first token is a constant key itself; without one asks 'off-by-one-without-bos'.",
)
