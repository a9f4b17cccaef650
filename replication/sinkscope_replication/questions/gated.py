"""Does a head that can close a gate need a sink?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above_ratio, log_ratio, more_models

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
SINK = Has("sink_0", 3.0)
OURS = "our question: the source reports outliers or losses, and no sink rates"
BONDARENKO_OPT = "Bondarenko et al. 2023, OPT-125M, from third parties' notes"


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
    name="gated",
    asks="Does a head that can close a gate need a sink?",
    source=BONDARENKO_OPT,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, infinity_norm=340.0, kurtosis=1778.0),
        operation("gated_head", infinity_norm=8.7, kurtosis=18.9),
    ),
    assertions=(fewer_with("gated_head", OURS), outliers("gated_head", "softmax", BONDARENKO_OPT)),
)
