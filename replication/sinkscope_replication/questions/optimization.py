"""Questions about the optimizer (Gu et al. 2025, Tables 9 and 10; Kaul et al. 2024; Guo et al. 2024a)."""

from __future__ import annotations

import math

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Observed,
    Question,
    Variation,
    above_ratio,
    log_ratio,
    log_ratio_at_equal_loss,
    more_models,
    most_models,
    onset,
    rising,
    times,
    within,
)

STUDY = FromRecipe(job="replication")
BASE, NEW_BASE, NEW = range(13), range(13, 25), range(13, 19)
SINK = Has("sink_0", 3.0)
MASS = "sink/mass"
TABLE_9, TABLE_10 = "Gu et al. 2025, Table 9", "Gu et al. 2025, Table 10"
LR_4 = Variation("lr / 4", {"optimizer.lr": times(1 / 4)}, {"sink_0": 2.90, "loss": 3.92})


def early(run: Observed) -> bool | None:
    """Whether the sink rate reaches 1 % within three quarters of the steps."""
    share = onset(run, "sink/position_0", 1.0)
    return None if math.isnan(share) else share <= 0.75


learning_rate = Question(
    name="learning-rate",
    asks="Does a smaller learning rate weaken and delay the sink?",
    source=TABLE_9,
    base=STUDY,
    seeds=6,
    variations=(
        Variation("lr / 8", {"optimizer.lr": times(1 / 8)}),
        LR_4,
        Variation("lr", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=BASE),
    ),
    assertions=(
        more_models(
            "lr",
            "lr / 4",
            SINK,
            "weaker",
            "more models have a sink with all of the learning rate than with a quarter",
            TABLE_9,
        ),
        more_models(
            "lr",
            "lr / 4",
            early,
            "later",
            "more models have a rate of 1 % within three quarters of the steps with all of the learning rate than with "
            "a quarter",
            "Gu et al. 2025, section 4",
        ),
        above_ratio(
            1.0,
            log_ratio_at_equal_loss("lr", "lr / 4", MASS),
            "weaker at equal loss",
            "at equal validation loss the sink mass is larger with all of the learning rate than with a quarter",
            "our question: the source compares equal steps",
        ),
    ),
)

learning_rates = Question(
    name="learning-rates",
    asks="Does the sink grow over the paper's four learning rates?",
    source=TABLE_9,
    base=STUDY,
    seeds=NEW,
    variations=(
        LR_4,
        Variation("lr / 2", {"optimizer.lr": times(1 / 2)}, {"sink_0": 11.21, "loss": 3.78}),
        Variation("lr", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=NEW_BASE),
        Variation("lr x 2", {"optimizer.lr": times(2.0)}, {"sink_0": 32.23, "loss": 3.70}),
    ),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass", ("lr / 4", "lr / 2", "lr", "lr x 2"), log=True),
            "monotone",
            "the sink mass rises more than 1.25 times from a quarter of the learning rate to twice of it",
            TABLE_9,
        ),
    ),
)

equal_product = Question(
    name="equal-product",
    asks="Where steps times learning rate is the same, does the larger rate make the stronger sink?",
    source=TABLE_9,
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation(
            "lr x 2, half", {"optimizer.lr": times(2.0), "steps": times(1 / 2.0)}, {"sink_0": 23.44, "loss": 3.79}
        ),
        Variation("lr, all steps", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=NEW_BASE),
        Variation(
            "lr / 2, twice",
            {"optimizer.lr": times(1 / 2), "steps": times(1 / (1 / 2))},
            {"sink_0": 16.81, "loss": 3.68},
        ),
    ),
    assertions=(
        above_ratio(
            1.0,
            rising("sink_mass", ("lr / 2, twice", "lr, all steps", "lr x 2, half"), log=True),
            "monotone",
            "the larger rate with fewer steps has more sink mass",
            TABLE_9,
        ),
    ),
)

BATCHES = ("a quarter", "half", "all", "twice")

batch_size = Question(
    name="batch-size",
    asks="Does the batch size matter, at equal tokens?",
    source=TABLE_10,
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("a quarter", {"batch_size": times(1 / 4), "steps": times(4.0)}, {"sink_0": 16.45, "loss": 3.92}),
        Variation("half", {"batch_size": times(1 / 2), "steps": times(2.0)}, {"sink_0": 17.19, "loss": 3.78}),
        Variation("all", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=NEW_BASE),
        Variation("twice", {"batch_size": times(2.0), "steps": times(0.5)}, {"sink_0": 16.19, "loss": 3.68}),
    ),
    assertions=(
        within(
            math.log(1.5),
            rising("sink_mass", BATCHES, log=True),
            "little",
            "from a quarter of the batch to twice the batch the sink mass changes by less than a factor of 1.5 (the "
            "effect is the factor's logarithm)",
            TABLE_10,
            symmetric=True,
        ),
        most_models(
            ("a quarter", "half", "twice"),
            SINK,
            "always there",
            "most models have a sink with a quarter, half and twice the batch",
            TABLE_10,
        ),
    ),
)

KAUL = "Kaul et al. 2024, GPT-2 of 130M, from third parties' notes"
MOMENTUM = {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.lr": 0.5}

optimizers = Question(
    name="optimisers",
    asks="Which optimizers make outliers and massive activations?",
    source="Kaul et al. 2024; Guo et al. 2024a",
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("AdamW", {}, {"kurtosis": 140.0}, seeds=NEW_BASE),
        Variation("Adam with L2", {"optimizer.name": "adam"}),
        Variation("RMSProp", {"optimizer.name": "rmsprop", "optimizer.lr": 2e-3}, {"kurtosis": 70.5}),
        Variation("SGD", {"optimizer.name": "sgd", "optimizer.lr": 0.5}, {"kurtosis": 3.2}),
        Variation("SGD with momentum", MOMENTUM, {"kurtosis": 5.0}),
        Variation("OrthoAdam", {"optimizer.name": "orthoadam"}, {"kurtosis": 3.0}),
        Variation("Muon", {"optimizer.name": "muon"}),
    ),
    assertions=tuple(
        above_ratio(
            1.25,
            log_ratio("kurtosis", "AdamW", other),
            f"{other}: fewer outliers",
            f"the kurtosis of hidden states, at the depth where it is largest, is more than 1.25 times as large with "
            f"AdamW as with {other}",
            KAUL,
        )
        for other in ("OrthoAdam", "SGD with momentum")
    ),
    not_at=dict.fromkeys(("mini", "paper"), "its learning rates are multiples of nano's"),
)

QUESTIONS = (learning_rate, learning_rates, equal_product, batch_size, optimizers)
