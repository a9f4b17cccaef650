"""Questions about the attention operation: similarity and normaliser [A14, A15, A24], biases [A8, A9], gates [X18]."""

from __future__ import annotations

from sinkscope.experiments.effects import below, gap, gap_at_equal_loss, level
from sinkscope.experiments.question import Question, Variation, above

TABLE_6 = "A14, A15; Gu et al. 2025, Table 6"
TABLE_4 = "A8, A9; Gu et al. 2025, Table 4"


def operation(name: str, label: str = "", **published: float) -> Variation:
    """The recipe under an operation of the catalogue."""
    return Variation(label or name, {"attention": name}, published)


SOFTMAX = operation("softmax", sink_0=18.18, loss=3.73)

normalisation = Question(
    name="normalisation",
    asks="Is it the softmax's normalisation that makes the sink?",
    rows=("A14", "A15"),
    source=TABLE_6,
    variations=(
        SOFTMAX,
        operation("sigmoid", sink_0=0.44, loss=3.70),
        operation("sigmoid_normalized", sink_0=30.24, loss=3.74),
    ),
    assertions=(
        above(
            3.0,
            gap("sink_0", "softmax", "sigmoid"),
            "sigmoid has none",
            "without normalisation the sink rate is lower than softmax's by more than 3 points, at equal steps",
            TABLE_6,
        ),
        above(
            1.0,
            gap_at_equal_loss("softmax", "sigmoid"),
            "also at equal loss",
            "and by more than 1 point where both have the validation loss that the slower one ends with",
            TABLE_6,
        ),
        above(
            3.0,
            gap("sink_0", "sigmoid_normalized", "sigmoid"),
            "normalising brings it back",
            "normalising the sigmoid's rows raises the sink rate by more than 3 points",
            TABLE_6,
        ),
        above(
            1.0,
            gap("norm_ratio", "softmax", "sigmoid"),
            "no massive activation",
            "the first token's norm ratio is higher under softmax by more than 1",
            TABLE_6,
        ),
    ),
)

biases = Question(
    name="biases",
    asks="Does a learned key take the sink away from the first token, and a learned value not?",
    rows=("A8", "A9"),
    source=TABLE_4,
    variations=(
        SOFTMAX,
        operation("k_bias", slot=73.34, sink_0=0.0, loss=3.72),
        operation("v_bias", sink_0=17.53, loss=3.73),
    ),
    assertions=(
        above(
            3.0,
            gap("sink_0", "softmax", "k_bias"),
            "a key bias takes it",
            "with a key bias the sink rate at position 0 falls by more than 3 points",
            TABLE_4,
        ),
        above(
            1.0,
            level("slot", "k_bias"),
            "the bias is the sink",
            "more than 1 % of heads have their sink on it",
            TABLE_4,
        ),
        above(
            3.0,
            level("sink_0", "v_bias"),
            "a value bias does not",
            "with a value bias more than 3 % of heads still have their sink at position 0",
            TABLE_4,
        ),
    ),
)

off_by_one = Question(
    name="off-by-one",
    asks="Does softmax-off-by-one remove the sink?",
    rows=("A24",),
    source="A24; Miller 2023; Kaul et al. 2024",
    variations=(SOFTMAX, operation("softmax_off_by_one")),
    assertions=(
        above(
            1.0,
            gap("sink_0", "softmax", "softmax_off_by_one"),
            "lowers it",
            "the sink rate at position 0 is lower by more than 1 point",
            "A24; Kaul et al. 2024",
        ),
        above(
            -1.0,
            below("sink_0", "softmax_off_by_one"),
            "removes it",
            "it is below 1 %",
            "A24; Miller 2023",
        ),
    ),
)

QUESTIONS = (normalisation, biases, off_by_one)
