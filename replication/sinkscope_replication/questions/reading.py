"""Questions about how a finished model is read: metric and input.

Source: Gu et al. 2025, section 3, Table 1, Figure 4; slides of Gu et al. 2025.
"""

from __future__ import annotations

from itertools import pairwise, product

from sinkscope.experiments import LARGEST, Question, SeedEffect, Variation, Withdrawn, above, below
from sinkscope.experiments.effects import (
    LOSS,
    MASS,
    SINK,
    curve_correlation,
    fallen,
    half_way,
    last,
    least,
    level,
    metric_gap,
    rising,
)
from sinkscope_replication.assertions import FRESH, HAS_MASS, NO_MASS, NONE, Sink, by_mass_and_rate, mass_at
from sinkscope_replication.questions.variations import LR, LR_4, LR_8, relative

FIGURE_3 = "Gu et al. 2025, Figure 3"
FIGURE_4 = "Gu et al. 2025, Figure 4"
TABLE_1 = "Gu et al. 2025, Table 1, LLaMA2-7B"

PREFIX = f"{LARGEST}prefix_matching"
THRESHOLDS, LENGTHS = (0.2, 0.3, 0.4, 0.5), (32, 64, 128)
RATES = ("lr / 8", "lr / 4", "lr")
ON_THE_FLOOR = (128, 0.5)  # where no model of this size has a rate of 1 %
CELLS = tuple(cell for cell in product(LENGTHS, THRESHOLDS) if cell != ON_THE_FLOOR)


def _falls_with_length(sink: Sink) -> SeedEffect:
    """The smallest step by which the sink weakens from one length to the next."""
    return lambda runs: least(
        runs["lr"][sink(0, f"/tokens={shorter}")] - runs["lr"][sink(0, f"/tokens={longer}")]
        for shorter, longer in pairwise(LENGTHS)
    )


metric = Question(
    name="metric",
    asks="Do threshold and length of the text decide which model has the stronger sink?",
    source=FIGURE_3,
    variations=(LR_8, LR_4, LR),
    # Which threshold, and which length, is what is asked: so the rates stay, behind a mass that averages thresholds.
    assertions=(
        above(
            0.33,
            lambda runs: least(rising(mass_at(0, f"/tokens={tokens}"), RATES)(runs) for tokens in LENGTHS),
            "order at each length, by mass",
            "on 32, on 64 and on 128 tokens the sink mass, which averages over thresholds, rises with the learning "
            "rate of training (an eighth, a quarter, all of it): by more than 0.33 points along the fitted line",
            FIGURE_3,
            FRESH,
        ),
        *(
            above(
                1.0,
                rising(f"sink_0/tokens={tokens}/epsilon={epsilon:g}", RATES),
                f"order at {epsilon:g} on {tokens} tokens",
                f"at a threshold of {epsilon:g} on {tokens} tokens the sink rate rises with the learning rate of "
                "training "
                "(an eighth, a quarter, all of it): by more than 1 point along the fitted line",
                FIGURE_3,
            )
            for tokens, epsilon in CELLS
        ),
        *by_mass_and_rate(
            above,
            0.0,
            _falls_with_length,
            "length",
            "the sink {measure} falls as the text grows from 32 to 64 and 128 tokens",
            FIGURE_3,
        ),
    ),
    base=relative,
    note="Of three learning rates the rise along the fitted line is that from the first to the last.",
    withdrawn=(
        Withdrawn(
            "order at 0.5 on 128 tokens",
            "at a threshold of 0.5 on 128 tokens the sink rate rises with the learning rate of training (an eighth, a "
            "quarter, all of it): by more than 1 point along the fitted line",
            "it could not hold: the strongest of the three models has a rate of 0.4 % there, so that nothing can be "
            "ordered by 1 point",
        ),
    ),
)

inputs = Question(
    name="inputs",
    asks="Does the sink need natural text?",
    source=TABLE_1,
    variations=(
        Variation("softmax", {}, {"sink_0": 92.47, "sink_0/random_after_first": 90.13, "sink_0/repeated": 0.0}),
    ),
    assertions=(
        above(
            HAS_MASS,
            level("sink_mass/random_after_first", "softmax"),
            "nor in random text, by mass",
            f"also on random tokens behind the BOS the sink mass at position 0 is more than {HAS_MASS:g} %",
            f"{TABLE_1}: rates of 92.47 % on text, 90.13 % on random tokens",
            FRESH,
        ),
        above(
            3.0,
            level("sink_0/random_after_first", "softmax"),
            "nor in random text",
            "also on random tokens behind the BOS more than 3 % of heads have their sink at position 0",
            f"{TABLE_1}: 92.47 % on text, 90.13 % on random tokens",
        ),
        below(
            NO_MASS,
            level("sink_mass/without_first", "softmax"),
            "no mass without its BOS",
            f"without its BOS the first token of a model trained with it has a sink mass of less than {NO_MASS:g} %",
            "slides of Gu et al. 2025: a rate of 0.05 %",
            FRESH,
        ),
        below(
            NONE,
            level("sink_0/without_first", "softmax"),
            "none without its BOS",
            f"without its BOS less than {NONE:g} % of heads of a model trained with it have a sink at the first token",
            "slides of Gu et al. 2025: 0.05 %",
        ),
        *by_mass_and_rate(
            above,
            3.0,
            lambda sink: metric_gap("softmax", sink(), sink(0, "/without_first")),
            "needs its BOS",
            "a model trained with a fixed BOS loses more than {points} of its sink {measure} without it",
            "slides of Gu et al. 2025: rates of 90.84 to 0.05 %",
        ),
        above(
            0.1,
            metric_gap("softmax", "loss/without_first", "loss/with_first"),
            "and its loss",
            "the loss of a model trained with a fixed BOS rises by more than 0.1 nats without it",
            "slides of Gu et al. 2025: 2.69 to 7.56",
        ),
        above(
            1.0,
            metric_gap("softmax", "loss/without_first", "loss/with_first"),
            "its loss breaks down",
            "the loss of a model trained with a fixed BOS rises by more than 1 nat without it",
            "slides of Gu et al. 2025: 2.69 to 7.56",
        ),
    ),
    note="The published loss rises by 4.87 nats. Whether ours rises by one, and how much of a sink is left without the "
    "BOS, was asked when the runs had been seen.",
    withdrawn=(
        Withdrawn(
            "not on repetition",
            "with rotary positions the sink rate is lower on one repeated token than on text, by more than 1 point",
            "the repeated token stands there without the BOS, and natural text without it reads 0.06 % too, so that "
            "the BOS was asked about; that rotary positions tell no repeated tokens apart is a theorem "
            "(`sinkscope theory`), and learned positions are asked in 'moved-positions'",
        ),
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)

emergence = Question(
    name="emergence",
    asks="When does the sink emerge in training?",
    source=FIGURE_4,
    variations=(Variation("softmax", {}, {"sink_0": 18.18, "loss": 3.73}),),
    assertions=(
        above(
            1.0,
            lambda runs: last(runs["softmax"], MASS) - last(runs["softmax"], MASS, 0.25),
            "after the start, by mass",
            "at the end the sink mass is higher than after a quarter of the steps, by more than 1 point",
            FIGURE_4,
            FRESH,
        ),
        above(
            1.0,
            lambda runs: last(runs["softmax"], SINK) - last(runs["softmax"], SINK, 0.25),
            "after the start",
            "at the end the sink rate is higher than after a quarter of the steps, by more than 1 point",
            FIGURE_4,
        ),
        above(
            2 / 3,
            lambda runs: fallen(runs["softmax"], LOSS, half_way(runs["softmax"], MASS)),
            "in the last third of the loss, by mass",
            "when the sink mass has come half of its way, more than two thirds of the validation loss's fall are done",
            FIGURE_4,
            FRESH,
        ),
        above(
            2 / 3,
            lambda runs: fallen(runs["softmax"], LOSS, half_way(runs["softmax"], SINK)),
            "in the last third of the loss",
            "when the sink rate has come half of its way, more than two thirds of the validation loss's fall are done",
            FIGURE_4,
        ),
        above(
            0.0,
            lambda runs: half_way(runs["softmax"], MASS) - half_way(runs["softmax"], PREFIX),
            "after a head that matches prefixes",
            "the sink mass reaches half of its final rise later than the largest prefix-matching score of a head does "
            "(the effect is a share of the steps)",
            "our question, after Olsson et al. 2022",
            FRESH,
        ),
        above(
            0.8,
            curve_correlation("softmax", MASS, "step"),
            "steadily, by mass",
            "the sink mass rises with the steps on the whole (rank correlation above 0.8)",
            FIGURE_4,
            FRESH,
        ),
        above(
            0.8,
            curve_correlation("softmax", SINK, "step"),
            "steadily",
            "the sink rate rises with the steps on the whole (rank correlation above 0.8)",
            FIGURE_4,
        ),
    ),
    withdrawn=(
        Withdrawn(
            "not at first",
            "before the first step less than 1 % of heads have their sink at position 0",
            "attention of random weights is nearly uniform, so it could not fail",
        ),
        Withdrawn(
            "as the loss has fallen",
            "the sink rate reaches half of its final rise later than the validation loss reaches half of its fall",
            "half of the loss's fall is over after a few dozen steps, so it could hardly fail; the last third is asked",
        ),
    ),
    note="Two thirds of the loss's fall are over after a quarter of the steps: a sink that grew evenly would come in "
    "the last third too, at shares of 0.84 to 0.90 of the fall.",
)

QUESTIONS = (metric, inputs, emergence)
