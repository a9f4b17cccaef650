"""Where nothing else is constant, is the key of zeros that softmax-off-by-one adds the sink?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above_ratio, log_ratio, most_models

STUDY = FromRecipe(job="replication")


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


QUESTION = Question(
    name="off-by-one-without-bos",
    asks="Where nothing else is constant, is the key of zeros that softmax-off-by-one adds the sink?",
    source="Miller 2023; Gu et al. 2025, Table 4",
    base=STUDY,
    seeds=range(3, 10),
    shared={"data.bos": "none"},
    variations=(
        operation("softmax", seeds=range(6)),
        operation("softmax_off_by_one"),
        operation("k_bias", slot=73.34),
    ),
    assertions=(
        most_models(
            "softmax_off_by_one", Has("slot", 3.0), "a sink", "most models have their sink on it", "our prediction"
        ),
        above_ratio(
            1.0,
            log_ratio("slot_mass", "k_bias", "softmax_off_by_one"),
            "a learned key takes more",
            "a learned key with a zero value has more sink mass than a key of zeros",
            "our prediction",
        ),
    ),
)
