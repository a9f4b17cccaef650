"""Do softmax-off-by-one and OrthoAdam together remove sink and outliers?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above_ratio, log_ratio, more_models

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
SINK = Has("sink_0", 3.0)
KAUL = "Kaul et al. 2024, GPT-2 of 130M, from third parties' notes"


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
    name="off-by-one-and-orthoadam",
    asks="Do softmax-off-by-one and OrthoAdam together remove sink and outliers?",
    source=KAUL,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, first_share=65.0, kurtosis=1657.0),
        operation("softmax_off_by_one"),  # the source's numbers for one change alone are of another baseline
        Variation("OrthoAdam", {"optimizer.name": "orthoadam"}),
        Variation(
            "both",
            {"attention": "softmax_off_by_one", "optimizer.name": "orthoadam"},
            {"first_share": 3.3, "kurtosis": 3.1},
        ),
    ),
    assertions=(fewer_with("both", KAUL), outliers("both", "softmax", KAUL)),
)
