"""Questions about learned keys, values and tokens beside the text (Gu et al. 2025, Tables 4, 5, 12, 13)."""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Question,
    Variation,
    above_ratio,
    below,
    gap,
    log_ratio,
    more_models,
    most_models,
    rising,
)

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK, ON_SLOT, MASSIVE = Has("sink_0", 3.0), Has("slot", 3.0), Has("norm_ratio", 4.0)
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

sink_token = Question(
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

biases = Question(
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

biases_without_bos = Question(
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

key_value_biases = Question(
    name="key-value-biases",
    asks="Is a learned key the sink also when all heads share it?",
    source=TABLE_12,
    base=STUDY,
    seeds=range(3, 10),
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

FIXED = {
    "first": ((1, 70.03, 0.06, 3.72), (5, 44.43, 3.71, 3.72), (20, 1.51, 25.88, 3.71)),
    "uniform": ((1, 69.74, 2.15, 3.72), (5, 27.99, 5.93, 3.72), (20, 0.0, 11.21, 3.73)),
}

fixed_values = Question(
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

low_rank_key = Question(
    name="low-rank-key",
    asks="How many channels does a key bias need to be the sink?",
    source=TABLE_13,
    base=STUDY,
    seeds=range(3, 9),
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
        above_ratio(
            1.0,
            rising("slot_mass", ("1 channel", "11 channels", "the whole key"), log=True),
            "more channels, more",
            "the sink mass rises from one learned channel to 11 and to the whole key",
            TABLE_13,
        ),
    ),
)

QUESTIONS = (sink_token, biases, biases_without_bos, key_value_biases, fixed_values, low_rank_key)
