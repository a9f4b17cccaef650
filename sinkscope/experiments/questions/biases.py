"""Questions about learned keys, values and tokens beside the text (Gu et al. 2025, Tables 4, 5, 12, 13)."""

from __future__ import annotations

from sinkscope.experiments.assertions import POINTS, keeps_sink, less_massive, less_sink
from sinkscope.experiments.effects import gap, level, rising
from sinkscope.experiments.question import Assertion, Question, above
from sinkscope.experiments.questions.variations import SOFTMAX, model, operation

TABLE_4 = "Gu et al. 2025, Table 4"
ON_SLOT = 1.0  # percent of heads; the paper's 70 % are many times that


def on_slot(label: str, source: str) -> Assertion:
    """Heads that have their sink on what was learned beside the text."""
    return above(
        ON_SLOT,
        level("slot", label),
        f"{label}: the bias is the sink",
        f"with '{label}' more than {ON_SLOT:g} % of heads have their sink on the bias",
        source,
    )


sink_token = Question(
    name="sink-token",
    asks="Does a learned token before the text take the sink, and the massive activation with it?",
    source="Gu et al. 2025, Table 4; Xiao et al. 2024",
    # Positions of its measurements count the learned token: 0 is Sink_*, 1 is Sink_1.
    variations=(SOFTMAX, model("sink token", {"sink_tokens": 1}, sink_0=74.12, sink_1=0.0, loss=3.72)),
    assertions=(
        *keeps_sink("sink token", "softmax", "Gu et al. 2025, Table 4: 74.12 %", what="the learned token"),
        above(
            POINTS,
            lambda runs: runs["softmax"]["sink_0"] - runs["sink token"]["sink_1"],
            "takes it",
            "the first token of the text has a lower sink rate than without the learned token, by more than 3 points",
            "Gu et al. 2025, Table 4: 18.18 and 0.00 %",
        ),
        above(
            2.0,
            level("norm_ratio", "sink token"),
            "massive activation",
            "the learned token is more than twice as long as the others at some depth",
            "Gu et al. 2025, section 7",
        ),
    ),
)

biases = Question(
    name="biases",
    asks="Does a learned key take the sink away from the first token, and a learned value not?",
    source=TABLE_4,
    variations=(
        SOFTMAX,
        operation("k_bias", slot=73.34, sink_0=0.0, loss=3.72),
        operation("v_bias", sink_0=17.53, loss=3.73),
    ),
    assertions=(
        *less_sink("k_bias", "softmax", f"{TABLE_4}: 18.18 and 0.00 %"),
        on_slot("k_bias", f"{TABLE_4}: 73.34 %"),
        *less_massive("k_bias", "softmax", f"{TABLE_4}: massive activations vanish"),
        *keeps_sink("v_bias", "softmax", f"{TABLE_4}: 17.53 %"),
    ),
)

SHARED = "Gu et al. 2025, Table 12"

key_value_biases = Question(
    name="key-value-biases",
    asks="Does a learned key take the sink also with a learned value, and when all heads share it?",
    source="Gu et al. 2025, Tables 4 and 12",
    variations=(
        SOFTMAX,
        operation("kv_bias", slot=72.76, sink_0=0.04, loss=3.72),
        operation("kv_bias_shared", slot=56.61, sink_0=12.44),
        operation("k_bias", slot=73.34, sink_0=0.0, loss=3.72),
        operation("k_bias_shared", slot=68.31, sink_0=0.23),
    ),
    assertions=(
        *less_sink("kv_bias", "softmax", "Gu et al. 2025, Table 4: 18.18 and 0.04 %"),
        on_slot("kv_bias", "Gu et al. 2025, Table 4: 72.76 %"),
        *less_sink("k_bias_shared", "softmax", "Gu et al. 2025, Table 12: 18.18 and 0.23 %"),
        on_slot("k_bias_shared", "Gu et al. 2025, Table 12: 68.31 %"),
        on_slot("kv_bias_shared", f"{SHARED}: 56.61 %"),
        # Sharing leaves some sinks on the first token.
        *less_sink("kv_bias", "kv_bias_shared", f"{SHARED}: 12.44 and 0.04 %", margin=1.0, margin_at_loss=0.0),
    ),
)

FIXED = {
    "first": ((1, 70.03, 0.06, 3.72), (5, 44.43, 3.71, 3.72), (20, 1.51, 25.88, 3.71)),
    "uniform": ((1, 69.74, 2.15, 3.72), (5, 27.99, 5.93, 3.72), (20, 0.0, 11.21, 3.73)),
}
TABLE_5 = "Gu et al. 2025, Table 5"


def _length_decides(direction: str, published: str) -> tuple[Assertion, ...]:
    labels = tuple(f"{norm} {direction}" for norm in (20, 5, 1))
    return (
        above(
            1.0,
            rising("slot", labels),
            f"{direction}: shorter is better",
            f"the shorter the fixed value ('{direction}', norms 20, 5, 1), the more heads have their sink on the bias: "
            "more than 1 point of them along the fitted line",
            f"{TABLE_5}: {published}",
        ),
        above(
            ON_SLOT,
            gap("slot", "zero", f"20 {direction}"),
            f"{direction}: a long value repels",
            f"a value of norm 20 ('{direction}') has fewer sinks on the bias than a zero value, by more than 1 point",
            f"{TABLE_5}: {published}",
        ),
        *less_sink("zero", f"20 {direction}", f"{TABLE_5}: {published}", margin=1.0, margin_at_loss=0.0),
    )


fixed_values = Question(
    name="fixed-values",
    asks="Must the value behind a sink be small?",
    source=TABLE_5,
    variations=(
        operation("k_bias", "zero", slot=73.34, sink_0=0.0, loss=3.72),
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
    assertions=(
        *_length_decides("first", "Sink_* 1.51, 44.43, 70.03 %, and 73.34 % for zero; Sink_1 25.88 and 0.00 %"),
        *_length_decides("uniform", "Sink_* 0.00, 27.99, 69.74 %, and 73.34 % for zero; Sink_1 11.21 and 0.00 %"),
    ),
)

LOW_RANK = {
    1: (32.18, 4.74),
    2: (30.88, 4.96),
    4: (30.94, 4.39),
    8: (31.39, 4.54),
    16: (23.30, 2.19),
    32: (51.23, 1.94),
}
TABLE_13 = "Gu et al. 2025, Table 13"


def _channels(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"


low_rank_key = Question(
    name="low-rank-key",
    asks="How many channels does a key bias need to take the sink?",
    source=TABLE_13,
    variations=(
        SOFTMAX,
        *(
            operation("k_bias_lowrank", _channels(channels), {"d_a": channels}, slot=slot, sink_0=sink)
            for channels, (slot, sink) in LOW_RANK.items()
        ),
    ),
    assertions=(
        on_slot("1 channel", f"{TABLE_13}: 32.18 %"),
        *less_sink("1 channel", "softmax", f"{TABLE_13}: 18.18 and 4.74 %", margin=1.0, margin_at_loss=0.0),
        above(
            1.0,
            gap("slot", "32 channels", "1 channel"),
            "more channels, more sinks",
            "32 channels have more sinks on the bias than one, by more than 1 point",
            f"{TABLE_13}: 51.23 and 32.18 % (64 channels, more than nano's heads have: 69.19 %)",
        ),
    ),
)

QUESTIONS = (sink_token, biases, key_value_biases, fixed_values, low_rank_key)
