"""How many channels does a key bias need to be the sink?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_ratio

STUDY = FromRecipe(job="replication")

TABLE_4, TABLE_5, TABLE_12, TABLE_13 = (f"Gu et al. 2025, Table {number}" for number in (4, 5, 12, 13))

WITHOUT_BOS = {"data.bos": "none"}  # a fixed BOS is a constant key and value itself


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


K_BIAS: dict[str, Any] = {"slot": 73.34, "sink_0": 0.0, "loss": 3.72}

QUESTION = Question(
    name="low-rank-key",
    asks="How many channels does a key bias need to be the sink?",
    source=TABLE_13,
    base=STUDY,
    seeds=range(6, 12),
    shared=WITHOUT_BOS,
    variations=(
        operation("softmax_off_by_one", "a key of zeros"),
        operation("k_bias_lowrank", "1 channel", {"d_a": 1}, slot=32.18, sink_0=4.74),
        operation("k_bias_lowrank", "11 channels", {"d_a": 11}, slot=51.23, sink_0=1.94),  # of 32, as 32 of 96 there
        operation("k_bias", "the whole key", **K_BIAS),
    ),
    assertions=(
        above_ratio(
            1.0,
            log_ratio("slot_mass", "1 channel", "a key of zeros"),
            "one channel",
            "one learned channel of the key has more sink mass than a key of zeros",
            TABLE_13,
        ),
        *(
            above_ratio(
                1.0,
                log_ratio("slot_mass", more, fewer),
                f"more in {more}",
                f"the sink mass is larger with {more} learned than with {fewer}",
                TABLE_13,
            )
            for fewer, more in (("1 channel", "11 channels"), ("11 channels", "the whole key"))
        ),
    ),
)
