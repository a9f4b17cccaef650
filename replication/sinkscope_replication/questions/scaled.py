"""Does the sink weaken where softmax's rows sum to less than one?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, rising

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
TABLE_14 = "Gu et al. 2025, Table 14"


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


SCALED = {2.0: (29.10, 3.72), 0.2: (9.41, 3.72), 0.1: (3.59, 3.76), 0.05: (4.53, 3.78)}

QUESTION = Question(
    name="scaled",
    asks="Does the sink weaken where softmax's rows sum to less than one?",
    source=TABLE_14,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, sink_0=18.18, loss=3.73),
        *(
            operation("softmax_scaled", f"alpha {alpha:g}", {"alpha": alpha}, sink_0=sink, loss=loss)
            for alpha, (sink, loss) in SCALED.items()
        ),
    ),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass", ("alpha 0.1", "alpha 0.2", "softmax", "alpha 2"), log=True),
            "monotone",
            "the sink mass rises more than 1.25 times with the sum of a row (.1, .2, 1, 2)",
            TABLE_14,
        ),
    ),
)
