"""Does a learned key take the sink away from a fixed BOS, and a learned value not?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above_ratio, log_ratio, more_models, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
MASSIVE = Has("norm_ratio", 4.0)

TABLE_4, TABLE_5, TABLE_12, TABLE_13 = (f"Gu et al. 2025, Table {number}" for number in (4, 5, 12, 13))


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


SOFTMAX: dict[str, Any] = {"sink_0": 18.18, "loss": 3.73}

K_BIAS: dict[str, Any] = {"slot": 73.34, "sink_0": 0.0, "loss": 3.72}

KV_BIAS: dict[str, Any] = {"slot": 72.76, "sink_0": 0.04, "loss": 3.72}

QUESTION = Question(
    name="biases",
    asks="Does a learned key take the sink away from a fixed BOS, and a learned value not?",
    source=TABLE_4,
    base=STUDY,
    seeds=6,
    variations=(
        operation("softmax", seeds=BASE, **SOFTMAX),
        operation("k_bias", **K_BIAS),
        operation("kv_bias", seeds=range(3, 9), **KV_BIAS),
        operation("v_bias", seeds=7, sink_0=17.53, loss=3.73),
    ),
    assertions=(
        more_models(
            "softmax",
            "k_bias",
            SINK,
            "a key takes it",
            "fewer models have a sink at position 0 with a learned key than with softmax",
            TABLE_4,
        ),
        most_models("v_bias", SINK, "a value does not", "most models with a learned value alone have a sink", TABLE_4),
        more_models(
            "softmax",
            "k_bias",
            MASSIVE,
            "massive activations vanish",
            "fewer models have a massive activation with a learned key than with softmax",
            TABLE_4,
        ),
        above_ratio(
            1.0,
            log_ratio("norm_ratio", "kv_bias", "k_bias"),
            "a key and a value leave more",
            "the first token is longer with a learned key and value than with a learned key alone",
            "Gu et al. 2025, section 7",
        ),
    ),
    note="With a fixed BOS the first token is a constant key and value itself: what is asked here is which of two "
    "redundant biases wins. The question without one is 'biases-without-bos'.",
)
