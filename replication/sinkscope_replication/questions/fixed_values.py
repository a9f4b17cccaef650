"""Must the value behind a sink be small?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, rising

STUDY = FromRecipe(job="replication")

TABLE_4, TABLE_5, TABLE_12, TABLE_13 = (f"Gu et al. 2025, Table {number}" for number in (4, 5, 12, 13))

WITHOUT_BOS = {"data.bos": "none"}  # a fixed BOS is a constant key and value itself


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


SOFTMAX: dict[str, Any] = {"sink_0": 18.18, "loss": 3.73}

K_BIAS: dict[str, Any] = {"slot": 73.34, "sink_0": 0.0, "loss": 3.72}

FIXED = {
    "first": ((1, 70.03, 0.06, 3.72), (5, 44.43, 3.71, 3.72), (20, 1.51, 25.88, 3.71)),
    "uniform": ((1, 69.74, 2.15, 3.72), (5, 27.99, 5.93, 3.72), (20, 0.0, 11.21, 3.73)),
}

QUESTION = Question(
    name="fixed-values",
    asks="Must the value behind a sink be small?",
    source=TABLE_5,
    base=STUDY,
    seeds=range(3, 9),
    shared=WITHOUT_BOS,
    variations=(
        operation("softmax", seeds=range(6), **SOFTMAX),
        operation("k_bias", "zero", **K_BIAS),
        *(
            operation(
                "k_bias_fixed_v",
                f"{norm} {direction}",
                {"direction": direction, "norm": float(norm)},
                slot=slot,
                sink_0=sink,
                loss=loss,
            )
            for direction, levels in FIXED.items()
            for norm, slot, sink, loss in levels
        ),
    ),
    assertions=tuple(
        above_ratio(
            1.25,
            rising("slot_mass", (f"20 {direction}", f"5 {direction}", f"1 {direction}"), log=True),
            f"{direction}: shorter is better",
            f"the sink mass of the bias is more than 1.25 times as large with a value of norm 1 as with one of 20 "
            f"('{direction}')",
            TABLE_5,
        )
        for direction in FIXED
    ),
    note="Values of nano's heads are about 5 long.",
)
