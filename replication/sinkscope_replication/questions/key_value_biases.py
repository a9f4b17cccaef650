"""Is a learned key the sink also when all heads share it?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above_ratio, log_ratio, most_models

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
    name="key-value-biases",
    asks="Is a learned key the sink also when all heads share it?",
    source=TABLE_12,
    base=STUDY,
    seeds=range(6, 13),
    shared=WITHOUT_BOS,
    variations=(
        operation("softmax", seeds=range(6), **SOFTMAX),
        operation("kv_bias", **KV_BIAS),
        operation("kv_bias_shared", slot=56.61, sink_0=12.44),
        operation("k_bias", **K_BIAS),
        operation("k_bias_shared", slot=68.31, sink_0=0.23),
    ),
    assertions=(
        most_models("k_bias_shared", ON_SLOT, "a shared key", "most have their sink on a shared key", TABLE_12),
        most_models(
            "kv_bias_shared",
            ON_SLOT,
            "a shared key and value",
            "most have their sink on a shared key and value",
            TABLE_12,
        ),
        above_ratio(
            1.0,
            log_ratio("slot_mass", "kv_bias", "kv_bias_shared"),
            "a shared one takes less",
            "the sink mass of the bias is larger where each head has its own",
            TABLE_12,
        ),
    ),
)
