"""Where nothing else is constant, is a learned key the sink, at no cost in loss?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, below, gap, most_models

STUDY = FromRecipe(job="replication")
ON_SLOT = Has("slot", 3.0)

TABLE_4, TABLE_5, TABLE_12, TABLE_13 = (f"Gu et al. 2025, Table {number}" for number in (4, 5, 12, 13))

WITHOUT_BOS = {"data.bos": "none"}  # a fixed BOS is a constant key and value itself


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


SOFTMAX: dict[str, Any] = {"sink_0": 18.18, "loss": 3.73}

K_BIAS: dict[str, Any] = {"slot": 73.34, "sink_0": 0.0, "loss": 3.72}

KV_BIAS: dict[str, Any] = {"slot": 72.76, "sink_0": 0.04, "loss": 3.72}

QUESTION = Question(
    name="biases-without-bos",
    asks="Where nothing else is constant, is a learned key the sink, at no cost in loss?",
    source=TABLE_4,
    base=STUDY,
    seeds=range(3, 10),
    shared=WITHOUT_BOS,
    variations=(
        operation("softmax", seeds=range(6), **SOFTMAX),
        operation("k_bias", **K_BIAS),
        operation("kv_bias", **KV_BIAS),
        operation("v_bias", seeds=range(3, 9), sink_0=17.53, loss=3.73),
    ),
    assertions=(
        most_models("k_bias", ON_SLOT, "a key", "most models have their sink on the learned key", TABLE_4),
        most_models("kv_bias", ON_SLOT, "a key with a value", "most have it on a learned key with a value", TABLE_4),
        below(
            0.05,
            gap("loss", "k_bias", "softmax"),
            "no cost",
            "the validation loss with a learned key ends less than .05 nats above softmax's",
            TABLE_4,
            symmetric=True,
        ),
    ),
)
