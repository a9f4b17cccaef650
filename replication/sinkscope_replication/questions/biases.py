"""Questions about learned keys, values and tokens beside the text (Gu et al. 2025, Tables 4 and 12)."""

from __future__ import annotations

from sinkscope.experiments import Assertion, Question, Withdrawn, above, above_ratio, below, within
from sinkscope.experiments.effects import gap, level, log_ratio, where
from sinkscope_replication.assertions import (
    FRESH,
    POINTS,
    by_mass_and_rate,
    keeps_sink,
    less_massive,
    less_sink,
    no_cost,
    no_sink,
    not_massive,
)
from sinkscope_replication.questions.variations import SOFTMAX, model, operation

TABLE_4 = "Gu et al. 2025, Table 4"
ON_SLOT = 1.0  # percent of heads, and of mass; the paper's 70 % of heads are many times that
WITHOUT_BOS = {"data.bos": "none"}  # with one, position 0 has a constant key and value itself: a second sink token
REDUNDANT = (
    "with a fixed BOS the first token is a constant key and value itself, so that two redundant biases competed; "
    "without one the model of this size has no sink that a bias could take, and what the bias takes is asked instead"
)
LOWERED = "its margin was a third of what is asked at equal steps; now it is the same"
NO_SINK = "'softmax' has no sink that could change"
NOT_MASSIVE = "'softmax' has no massive activation that could vanish"

K_BIAS = operation("k_bias", slot=73.34, sink_0=0.0, loss=3.72)
KV_BIAS = operation("kv_bias", slot=72.76, sink_0=0.04, loss=3.72)
V_BIAS = operation("v_bias", sink_0=17.53, loss=3.73)


def on_slot(label: str, source: str) -> tuple[Assertion, Assertion]:
    """A sink on what was learned beside the text, by its mass and by the share of heads."""
    return (
        above(
            ON_SLOT,
            level("slot_mass", label),
            f"{label}: mass on the bias",
            f"with '{label}' the sink mass of the bias is more than {ON_SLOT:g} %",
            source,
            FRESH,
        ),
        above(
            ON_SLOT,
            level("slot", label),
            f"{label}: the bias is the sink",
            f"with '{label}' more than {ON_SLOT:g} % of heads have their sink on the bias",
            source,
        ),
    )


sink_token = Question(
    name="sink-token",
    asks="Does a learned token before the text become the sink, and massive?",
    source="Gu et al. 2025, Table 4; Xiao et al. 2024",
    shared=WITHOUT_BOS,
    # Positions of its measurements count the learned token: 0 is Sink_*, 1 is Sink_1.
    variations=(SOFTMAX, model("sink token", {"sink_tokens": 1}, sink_0=74.12, sink_1=0.0, loss=3.72)),
    assertions=(
        *keeps_sink("sink token", "softmax", "Gu et al. 2025, Table 4: 74.12 %", what="the learned token"),
        above(
            2.0,
            level("norm_ratio", "sink token"),
            "massive activation",
            "the learned token is more than twice as long as the others at some depth",
            "Gu et al. 2025, section 7",
        ),
        no_cost("sink token", "softmax", "Gu et al. 2025, Table 4: 3.72 and 3.73"),
    ),
    note="Positions count the learned token: position 0 is the token, and the first of the text is position 1.",
    withdrawn=(
        Withdrawn(
            "takes it",
            "the first token of the text has a lower sink rate than without the learned token, by more than 3 points",
            REDUNDANT,
        ),
    ),
)

biases = Question(
    name="biases",
    asks="Does a learned key take the sink away from a fixed BOS, and a learned value not?",
    source=TABLE_4,
    variations=(SOFTMAX, K_BIAS, KV_BIAS, V_BIAS),
    assertions=(
        *less_sink("k_bias", "softmax", f"{TABLE_4}: 18.18 and 0.00 %"),
        *on_slot("k_bias", f"{TABLE_4}: 73.34 %"),
        *no_sink(("k_bias",), f"{TABLE_4}: 0.00 %"),
        *less_massive("k_bias", "softmax", f"{TABLE_4}: massive activations vanish"),
        not_massive("k_bias", f"{TABLE_4}: massive activations vanish"),
        *keeps_sink("v_bias", "softmax", f"{TABLE_4}: 17.53 %"),
        *by_mass_and_rate(
            within,
            POINTS,
            lambda sink: gap(sink(), "v_bias", "softmax"),
            "a value bias changes nothing",
            "a learned value alone changes the sink {measure} at position 0 by at most {points}",
            f"{TABLE_4}: rates of 18.18 and 17.53 %",
        ),
        above(
            0.0,
            gap("sink_mass", "kv_bias", "k_bias"),
            "a key alone takes more",
            "a key bias with a learned value leaves more sink mass at position 0 than one with a zero value",
            f"{TABLE_4}: 0.04 and 0.00 %",
            FRESH,
        ),
        above_ratio(
            1.0,
            log_ratio("norm_ratio", "kv_bias", "k_bias"),
            "and more of the massive activation",
            "the first token's norm ratio is larger with a key bias that has a learned value than with one that has a "
            "zero value",
            f"{TABLE_4}, section 7: only with zero values massive activations vanish",
        ),
    ),
    note="With a fixed BOS the first token is a constant key and value itself, like the learned sink token of the "
    "paper: what is asked here is which of two redundant biases wins. The question without one is "
    "'biases-without-bos'. That nothing is left of sink and massive activation, and that a value bias changes nothing, "
    "was asked here when the runs had been seen, since models without a BOS have neither to lose.",
    withdrawn=(
        Withdrawn(
            "k_bias: lower than softmax at equal loss, by 1 point",
            "the sink rate at position 0 is lower with 'k_bias' than with 'softmax' by more than 1 point, at equal "
            "validation loss, the one that the slower of the two ends with",
            LOWERED,
        ),
    ),
)

biases_without_bos = Question(
    name="biases-without-bos",
    asks="Where nothing else is constant, is a learned key the sink, at no cost in loss?",
    source=TABLE_4,
    shared=WITHOUT_BOS,
    variations=(SOFTMAX, K_BIAS, KV_BIAS, V_BIAS),
    assertions=(
        *on_slot("k_bias", f"{TABLE_4}: 73.34 %"),
        *on_slot("kv_bias", f"{TABLE_4}: 72.76 %"),
        within(
            1.0,
            where("softmax", "sink_mass/strongest", 1.0, gap("sink_mass/strongest", "v_bias", "softmax"), NO_SINK),
            "a value bias changes nothing",
            "a learned value alone changes the sink mass at the strongest position by at most 1 point",
            f"{TABLE_4}: 18.18 and 17.53 %",
            FRESH,
        ),
        below(
            2.0,
            where("softmax", "norm_ratio/strongest", 2.0, level("norm_ratio/strongest", "k_bias"), NOT_MASSIVE),
            "k_bias: not massive",
            "with 'k_bias' the token at the strongest position is less than twice as long as the others, at every "
            "depth",
            f"{TABLE_4}: massive activations vanish",
        ),
        *(no_cost(label, "softmax", f"{TABLE_4}: 3.72 or 3.73, and 3.73") for label in ("k_bias", "kv_bias", "v_bias")),
    ),
)

SHARED = "Gu et al. 2025, Table 12"

key_value_biases = Question(
    name="key-value-biases",
    asks="Is a learned key the sink also when all heads share it?",
    source="Gu et al. 2025, Tables 4 and 12",
    shared=WITHOUT_BOS,
    variations=(
        SOFTMAX,
        KV_BIAS,
        operation("kv_bias_shared", slot=56.61, sink_0=12.44),
        K_BIAS,
        operation("k_bias_shared", slot=68.31, sink_0=0.23),
    ),
    assertions=(
        *on_slot("k_bias_shared", "Gu et al. 2025, Table 12: 68.31 %"),
        *on_slot("kv_bias_shared", f"{SHARED}: 56.61 %"),
        above(
            0.0,
            gap("slot_mass", "kv_bias", "kv_bias_shared"),
            "a shared one takes less",
            "the sink mass of a key-value bias is larger where each head has its own than where all share it",
            f"{SHARED}: 72.76 and 56.61 %",
            FRESH,
        ),
        no_cost("k_bias_shared", "softmax", "our question: Table 12 of Gu et al. 2025 gives no losses"),
        *by_mass_and_rate(
            above,
            POINTS,
            lambda sink: where("softmax", sink(), 1.0, level(sink(), "kv_bias_shared"), NO_SINK),
            "kv_bias_shared: some stays at position 0",
            "with 'kv_bias_shared' the sink {measure} at position 0 is more than {points}, where that of 'softmax' is",
            f"{SHARED}: a rate of 12.44 %",
        ),
    ),
    withdrawn=(
        Withdrawn(
            "lower than softmax",
            "the sink rate at position 0 is lower with each of these biases than with 'softmax' by more than 3 points",
            REDUNDANT,
        ),
    ),
)

QUESTIONS = (sink_token, biases, biases_without_bos, key_value_biases)
