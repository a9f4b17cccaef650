"""Questions about the optimizer.

Source: Gu et al. 2025, Tables 9 and 10; Kaul et al. 2024; Guo et al. 2024a; He et al. 2024.
"""

from __future__ import annotations

from sinkscope.experiments import Question, Variation, Withdrawn, above, above_ratio, below, within
from sinkscope.experiments.effects import (
    MASS,
    SINK,
    gap_at_equal_loss,
    least_of,
    level,
    log_ratio,
    onset,
    rising,
)
from sinkscope_replication.assertions import FRESH, HAS_MASS, fewer_outliers, less_massive
from sinkscope_replication.questions.variations import LR, LR_4, LR_8, NANO_RATES, relative, times

TABLE_9 = "Gu et al. 2025, Table 9"
HALF = 2.5  # % of sink mass: half of what nano ends with
MORE_AT_EQUAL_LOSS = above(
    0.0,
    gap_at_equal_loss("lr", "lr / 4", MASS),
    "also at equal loss, by mass",
    "the sink mass is higher with all of the learning rate than with a quarter of it, at equal validation loss, the "
    "one that the slower of the two ends with",
    f"{TABLE_9}; our question: the source compares equal steps",
    FRESH,
)

learning_rate = Question(
    name="learning-rate",
    asks="Does a smaller learning rate weaken the sink, at equal steps?",
    source=TABLE_9,
    variations=(LR_8, LR_4, LR),
    assertions=(
        above(
            0.33,
            rising("sink_mass", ("lr / 8", "lr / 4", "lr")),
            "monotone, by mass",
            "the sink mass rises with the learning rate (1/8, 1/4 and all of it) at equal steps, by more than 0.33 "
            "points along the fitted line",
            f"{TABLE_9}: rates of 2.90 at a quarter, 11.21 at a half, 18.18 %",
            FRESH,
        ),
        above(
            0.0,
            rising("sink_0", ("lr / 8", "lr / 4", "lr")),
            "monotone",
            "the sink rate rises with the learning rate (1/8, 1/4 and all of it) at equal steps",
            f"{TABLE_9}: 2.90 at a quarter, 11.21 at a half, 18.18",
        ),
        above(
            0.1,
            lambda runs: onset(runs["lr / 4"], MASS, HALF) - onset(runs["lr"], MASS, HALF),
            "later, by mass",
            "with a quarter of the learning rate the sink mass reaches 2.5 %, half of what all of it ends with, "
            "later, by more than a tenth of the steps (a run that never does counts as one that does at its end)",
            "Gu et al. 2025, section 4: a smaller rate delays the sink",
            FRESH,
        ),
        above(
            0.1,
            lambda runs: onset(runs["lr / 4"], SINK, 1.0) - onset(runs["lr"], SINK, 1.0),
            "later",
            "with a quarter of the learning rate the sink rate reaches 1 % later, by more than a tenth of the steps (a "
            "run that never does counts as one that does at its end)",
            "Gu et al. 2025, section 4: a smaller rate delays the sink",
        ),
        MORE_AT_EQUAL_LOSS,
    ),
    withdrawn=(
        Withdrawn(
            "large",
            "with an eighth of the learning rate the sink rate is lower by more than 1 point",
            "an eighth of the rate leaves the model undertrained, which costs the sink by itself; a quarter is "
            "compared at equal loss",
        ),
        Withdrawn(
            "later, by a small mass",
            "with a quarter of the learning rate the sink mass reaches 0.33 % later, by more than a tenth of the steps",
            "models reach that mass at the first evaluation, long before a head has a sink, and with an eighth of the "
            "rate too, where none ever has; half of the final mass is asked",
        ),
    ),
    base=relative,
)

learning_rates = Question(
    name="learning-rates",
    asks="Does the sink rate rise over the paper's four learning rates?",
    source=TABLE_9,
    variations=(
        LR_4,
        Variation("lr / 2", {"optimizer.lr": times(1 / 2)}, {"sink_0": 11.21, "loss": 3.78}),
        LR,
        Variation("lr x 2", {"optimizer.lr": times(2.0)}, {"sink_0": 32.23, "loss": 3.70}),
    ),
    assertions=(
        above(
            0.33,
            rising("sink_mass", ("lr / 4", "lr / 2", "lr", "lr x 2")),
            "monotone, by mass",
            "the sink mass rises with the learning rate (a quarter, a half, all of it, twice) at equal steps, by more "
            "than 0.33 points along the fitted line",
            f"{TABLE_9}: rates of 2.90, 11.21, 18.18, 32.23 %",
            FRESH,
        ),
        above(
            0.0,
            rising("sink_0", ("lr / 4", "lr / 2", "lr", "lr x 2")),
            "monotone",
            "the sink rate rises with the learning rate (a quarter, a half, all of it, twice) at equal steps",
            f"{TABLE_9}: 2.90, 11.21, 18.18, 32.23 %",
        ),
        MORE_AT_EQUAL_LOSS,
        above(
            0.0,
            gap_at_equal_loss("lr", "lr / 4"),
            "also at equal loss",
            "the sink rate is higher with all of the learning rate than with a quarter of it, at equal validation "
            "loss, the one that the slower of the two ends with",
            f"{TABLE_9}; our question: the source compares equal steps",
        ),
    ),
    base=relative,
)


def _rate(factor: float) -> dict[str, str]:
    """Another learning rate, for as large a product of rate and steps."""
    return {"optimizer.lr": times(factor), "steps": times(1 / factor)}


equal_product = Question(
    name="equal-product",
    asks="Where steps times learning rate is the same, does the larger rate make the stronger sink?",
    source=TABLE_9,
    variations=(
        Variation("lr x 2, half", _rate(2.0), {"sink_0": 23.44, "loss": 3.79}),
        Variation("lr, all steps", {}, {"sink_0": 18.18, "loss": 3.73}),
        Variation("lr / 2, twice", _rate(1 / 2), {"sink_0": 16.81, "loss": 3.68}),
    ),
    assertions=(
        above(
            0.0,
            rising("sink_mass", ("lr / 2, twice", "lr, all steps", "lr x 2, half")),
            "monotone, by mass",
            "the larger rate with fewer steps has more sink mass",
            f"{TABLE_9}: rates of 23.44 (8e-4, 10k), 18.18 (4e-4, 20k), 16.81 (2e-4, 40k), 6.29 (1e-4, 80k)",
            FRESH,
        ),
        above(
            0.0,
            rising("sink_0", ("lr / 2, twice", "lr, all steps", "lr x 2, half")),
            "monotone",
            "the larger rate with fewer steps has the stronger sink",
            f"{TABLE_9}: 23.44 (8e-4, 10k), 18.18 (4e-4, 20k), 16.81 (2e-4, 40k), 6.29 (1e-4, 80k)",
        ),
    ),
    base=relative,
)

BATCHES = ("a quarter", "half", "all", "twice")


def _batch(factor: float) -> dict[str, str]:
    """A batch of another size, for as many tokens."""
    return {"batch_size": times(factor), "steps": times(1 / factor)}


batch_size = Question(
    name="batch-size",
    asks="Does the batch size matter?",
    source="Gu et al. 2025, Table 10",
    variations=(
        Variation("a quarter", _batch(1 / 4), {"sink_0": 16.45, "loss": 3.92}),
        Variation("half", _batch(1 / 2), {"sink_0": 17.19, "loss": 3.78}),
        Variation("all", {}, {"sink_0": 18.18, "loss": 3.73}),
        Variation("twice", _batch(2.0), {"sink_0": 16.19, "loss": 3.68}),
    ),
    assertions=(
        within(
            2.0,
            rising("sink_mass", BATCHES),
            "little, by mass",
            "at equal tokens the sink mass changes by at most 2 points from a quarter of the batch to twice the batch, "
            "along the line fitted to these and to half and all of it",
            "Gu et al. 2025, Table 10: rates of 16.19 to 18.18 %",
            FRESH,
        ),
        within(
            6.0,
            rising("sink_0", BATCHES),
            "little",
            "at equal tokens the sink rate changes by at most 6 points from a quarter of the batch to twice the batch, "
            "along the line fitted to these and to half and all of it",
            "Gu et al. 2025, Table 10: 16.19 to 18.18 %",
        ),
        above(
            HAS_MASS,
            least_of("sink_mass", BATCHES),
            "always there, by mass",
            f"with each of these batch sizes the sink mass at position 0 is more than {HAS_MASS:g} %",
            "Gu et al. 2025, Table 10: rates of 16.19 to 18.18 %",
            FRESH,
        ),
        above(
            3.0,
            least_of("sink_0", BATCHES),
            "always there",
            "with each of these batch sizes more than 3 % of heads have their sink at position 0",
            "Gu et al. 2025, Table 10: 16.19 to 18.18 %",
        ),
    ),
    base=relative,
)

KAUL = "Kaul et al. 2024, GPT-2 of 130M, from third parties' notes"
GUO = "Guo et al. 2024a; Kaul et al. 2024"
MOMENTUM = {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.lr": 0.5}

optimizers = Question(
    name="optimisers",
    asks="Which optimizers make massive activations?",
    source="Kaul et al. 2024; Guo et al. 2024a",
    variations=(
        Variation("AdamW", {}, {"kurtosis": 140.0}),
        Variation("Adam with L2", {"optimizer.name": "adam"}),
        Variation("RMSProp", {"optimizer.name": "rmsprop", "optimizer.lr": 2e-3}, {"kurtosis": 70.5}),
        Variation("SGD", {"optimizer.name": "sgd", "optimizer.lr": 0.5}, {"kurtosis": 3.2}),
        Variation("SGD with momentum", MOMENTUM, {"kurtosis": 5.0}),
        Variation("OrthoAdam", {"optimizer.name": "orthoadam"}, {"kurtosis": 3.0}),
        Variation("Muon", {"optimizer.name": "muon"}),
    ),
    assertions=(
        *less_massive("OrthoAdam", "AdamW", KAUL),
        fewer_outliers("OrthoAdam", "AdamW", f"{KAUL}: 140.0 and 3.0"),
        *less_massive("SGD with momentum", "AdamW", GUO),
        fewer_outliers("SGD with momentum", "AdamW", f"{KAUL}: 140.0 and 5.0"),
        below(
            2.0,
            level("norm_ratio", "SGD with momentum"),
            "none under SGD",
            "under SGD with momentum the first token is less than twice as long as the others, at every depth",
            "Guo et al. 2024a",
        ),
        above_ratio(
            1.0,
            log_ratio("kurtosis", "RMSProp", "SGD with momentum"),
            "RMSProp too",
            "RMSProp has more outliers than SGD with momentum: a higher kurtosis of hidden states",
            f"{KAUL}: 70.5 and 5.0",
        ),
    ),
    not_at=NANO_RATES,
)

QUESTIONS = (learning_rate, learning_rates, equal_product, batch_size, optimizers)
