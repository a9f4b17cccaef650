"""Does softpick remove sink and outliers?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above_ratio, log_ratio, more_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
ZUHRI = "Zuhri et al. 2025, 340M, from their README; the 63.41 from memory"


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


def outliers(label: str, than: str, source: str) -> Any:
    """The claim that an operation has fewer outliers than another."""
    return above_ratio(
        1.25,
        log_ratio("kurtosis", than, label),
        f"fewer outliers than {than}",
        f"the kurtosis of hidden states is more than 1.25 times as large with {than} as with {label}",
        source,
    )


QUESTION = Question(
    name="softpick",
    asks="Does softpick remove sink and outliers?",
    source=ZUHRI,
    base=STUDY,
    seeds=6,
    variations=(
        operation("softmax", seeds=BASE, sink_0=63.41, kurtosis=33510.0),
        operation("softpick", sink_0=0.0, kurtosis=340.0),
    ),
    assertions=(fewer_with("softpick", ZUHRI), outliers("softpick", "softmax", ZUHRI)),
)
