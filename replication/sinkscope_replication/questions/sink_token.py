"""Does a learned token before the text become the sink, and massive?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, below, gap, most_models

STUDY = FromRecipe(job="replication")
SINK = Has("sink_0", 3.0)
MASSIVE = Has("norm_ratio", 4.0)

TABLE_4, TABLE_5, TABLE_12, TABLE_13 = (f"Gu et al. 2025, Table {number}" for number in (4, 5, 12, 13))

WITHOUT_BOS = {"data.bos": "none"}  # a fixed BOS is a constant key and value itself


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


SOFTMAX: dict[str, Any] = {"sink_0": 18.18, "loss": 3.73}

QUESTION = Question(
    name="sink-token",
    asks="Does a learned token before the text become the sink, and massive?",
    source="Gu et al. 2025, Table 4; Xiao et al. 2024",
    base=STUDY,
    seeds=range(3, 10),
    shared=WITHOUT_BOS,
    variations=(
        operation("softmax", seeds=range(6), **SOFTMAX),
        Variation("sink token", {"model.sink_tokens": 1}, {"sink_0": 74.12, "sink_1": 0.0, "loss": 3.72}),
    ),
    assertions=(
        most_models("sink token", SINK, "a sink", "most models have their sink on the learned token", TABLE_4),
        most_models(
            "sink token",
            MASSIVE,
            "massive",
            "in most models the learned token is 4 times as long as the others at some depth",
            "Gu et al. 2025, section 7",
        ),
        below(
            0.05,
            gap("loss", "sink token", "softmax"),
            "no cost",
            "the validation loss ends less than .05 nats above softmax's",
            TABLE_4,
            symmetric=True,
        ),
    ),
    note="Positions count the learned token: position 0 is the token, and the first of the text is position 1.",
)
