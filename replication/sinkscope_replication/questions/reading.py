"""Questions about how a finished model is read: length, input, time (Gu et al. 2025, section 3, Table 1, Figure 4)."""

from __future__ import annotations

import math

from sinkscope.experiments import (
    LARGEST,
    FromRecipe,
    Has,
    Observed,
    Question,
    Variation,
    above,
    above_ratio,
    curve_correlation,
    half_way,
    last,
    log_quotient,
    metric_gap,
    most_models,
    rising,
    times,
)

STUDY = FromRecipe(job="replication")
BASE = range(13)
RATE, MASS = "sink/position_0", "sink/mass"
TABLE_1 = "Gu et al. 2025, Table 1, LLaMA2-7B"
SLIDES = "slides of Gu et al. 2025"
FIGURE_3, FIGURE_4 = "Gu et al. 2025, Figure 3", "Gu et al. 2025, Figure 4"
WITH_BOS = "the paper trains without a fixed BOS"

metric = Question(
    name="metric",
    asks="Do the length of the text and the threshold decide which model has the stronger sink?",
    source=FIGURE_3,
    base=STUDY,
    seeds=6,
    variations=(
        Variation("lr / 8", {"optimizer.lr": times(1 / 8)}),
        Variation("lr / 4", {"optimizer.lr": times(1 / 4)}, {"sink_0": 2.90, "loss": 3.92}),
        Variation("lr", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=BASE),
    ),
    assertions=(
        above_ratio(
            1.0,
            log_quotient("lr", "sink_mass/tokens=32", "sink_mass/tokens=128"),
            "falls with length",
            "the sink mass on 32 tokens is larger than on 128",
            FIGURE_3,
        ),
        *(
            above_ratio(
                1.0,
                rising(f"sink_mass/tokens={tokens}", ("lr / 8", "lr / 4", "lr"), log=True),
                f"same order on {tokens} tokens",
                f"on {tokens} tokens the sink mass rises with the learning rate of training (1/8, 1/4, all)",
                FIGURE_3,
            )
            for tokens in (32, 128)
        ),
    ),
)

inputs = Question(
    name="inputs",
    asks="Does the sink need natural text, and its BOS?",
    source=TABLE_1,
    base=STUDY,
    seeds=BASE,
    variations=(
        Variation("softmax", {}, {"sink_0": 92.47, "sink_0/random_after_first": 90.13, "sink_0/repeated": 0.0}),
    ),
    assertions=(
        most_models(
            "softmax",
            Has("sink_0/random_after_first", 3.0),
            "random tokens",
            "most models have a sink on random tokens after the BOS",
            TABLE_1,
        ),
        most_models(
            "softmax",
            Has("sink_0/without_first", at_most=1.0),
            "none without its BOS",
            "most models trained with a fixed BOS have a sink in at most 1 % of heads without it",
            SLIDES,
        ),
        above(
            1.0,
            metric_gap("softmax", "loss/without_first", "loss/with_first"),
            "its loss breaks down",
            "the loss of a model trained with a fixed BOS rises by more than 1 nat without it",
            SLIDES,
            symmetric=True,
        ),
    ),
    not_at={"paper": WITH_BOS},
)


def grown(run: Observed) -> bool | None:
    """Whether the sink rate grows by more than a point after the first quarter of the steps."""
    late, early = last(run, RATE), last(run, RATE, 0.25)
    return None if math.isnan(late - early) else late - early > 1.0


def steady(run: Observed) -> bool | None:
    """Whether the sink mass rises with the steps: a rank correlation of .8 and more."""
    value = curve_correlation("run", MASS, "step")({"run": run})
    return None if math.isnan(value) else value >= 0.8


emergence = Question(
    name="emergence",
    asks="When does the sink emerge in training?",
    source=FIGURE_4,
    base=STUDY,
    seeds=BASE,
    variations=(Variation("softmax", {}, {"sink_0": 18.18, "loss": 3.73}),),
    assertions=(
        most_models(
            "softmax",
            grown,
            "after the start",
            "in most models the sink rate grows by more than 1 point after the first quarter of the steps",
            FIGURE_4,
        ),
        most_models(
            "softmax",
            steady,
            "steadily",
            "in most models the sink mass rises with the steps (rank correlation of .8 and more)",
            FIGURE_4,
        ),
        above(
            0.0,
            lambda runs: half_way(runs["softmax"], MASS) - half_way(runs["softmax"], f"{LARGEST}prefix_matching"),
            "after a head that matches prefixes",
            "the sink mass is half way later than the largest prefix-matching score of a head (share of the steps)",
            "our question, after Olsson et al. 2022",
        ),
    ),
)

QUESTIONS = (metric, inputs, emergence)
