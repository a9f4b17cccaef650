"""Questions about what stands around the attention operation (Gu et al. 2025, Tables 3, 11, 12)."""

from __future__ import annotations

import math

from sinkscope.experiments import Question, Runs, SeedWise, Variation, Withdrawn, above, within
from sinkscope.experiments.effects import gap, level, metric_gap, rising
from sinkscope_replication.assertions import (
    OF_MASS,
    OURS,
    POINTS,
    Sink,
    all_keep_sink,
    by_mass_and_rate,
    fewer_outliers,
    keeps_sink,
    less_sink,
    mass_at,
)
from sinkscope_replication.questions.variations import SOFTMAX, model

TABLE_3 = "Gu et al. 2025, Table 3"
POSITIONS = {
    "none": (20.35, 3.81),
    "sinusoidal": (32.73, 3.74),
    "learned": (33.13, 3.79),
    "relative_paper": (35.53, 5.45),
    "alibi": (20.78, 3.71),
    "rotary": (18.18, 3.73),
}

EMERGING = tuple(position for position in POSITIONS if position != "relative_paper")


def _comes_in_training(sink: Sink) -> SeedWise:
    """What training adds; refused where the sink is there before it."""
    start, least = sink(0, "/start"), POINTS * OF_MASS if sink is mass_at else POINTS
    added = metric_gap("relative_paper", sink(), start)

    def effect(runs: Runs) -> float:
        value = added(runs)
        return math.nan if runs["relative_paper"][start] >= least else value

    return SeedWise(effect, "the sink is there before training", lambda runs: runs["relative_paper"][start] >= least)


positions = Question(
    name="positions",
    asks="Does the sink need a certain position embedding, or any?",
    source=TABLE_3,
    variations=tuple(
        model(position, {"position": position}, sink_0=sink, loss=loss) for position, (sink, loss) in POSITIONS.items()
    ),
    assertions=(
        *all_keep_sink(EMERGING, "rotary", f"{TABLE_3}: 18.18 to 33.13 %"),
        *by_mass_and_rate(
            above,
            POINTS,
            _comes_in_training,
            "relative_paper: emerges",
            "with 'relative_paper' the sink {measure} at position 0 ends more than {points} above where it starts, "
            "where it is not there from the start",
            f"{TABLE_3}: a rate of 35.53 %",
        ),
        *by_mass_and_rate(
            above,
            POINTS,
            lambda sink: level(sink(), "relative_paper"),
            "relative_paper: is there",
            "with 'relative_paper' the sink {measure} at position 0 is more than {points} at the end",
            f"{TABLE_3}: a rate of 35.53 %",
        ),
    ),
    withdrawn=(
        Withdrawn(
            "on one repeated token",
            "on one repeated token with none, alibi or rotary the sink mass and rate at the first are less than 0.33 "
            "points and 1",
            "these models learned with a BOS, and the repeated token stands without it: any text does so then; without "
            "positions it is a theorem (`sinkscope theory`)",
        ),
    ),
    note="Untrained models of 'relative_paper' have the sink already: its bias, of weights as they are drawn, gives "
    "the first position most of each row. What training adds is refused for them. "
    "That was seen after the runs; before it these models counted among those that keep a sink. On one repeated token "
    "that bias alone gives every head a sink on 64 tokens.",
)

post_norm = Question(
    name="post-norm",
    asks="Is there a sink where norms stand behind the blocks' sums, and is it massive before they act?",
    source="Gu et al. 2025, section 7",
    variations=(SOFTMAX, model("post-norm", {"norm_placement": "post"}, sink_0=13.54, norm_ratio=80.0)),
    assertions=(
        *keeps_sink("post-norm", "softmax", "Gu et al. 2025, section 7: 13.54 %"),
        above(
            2.0,
            level("norm_ratio", "post-norm"),
            "massive before the norm",
            "before a norm of the stream the first token is more than twice as long as the others at some depth",
            "Gu et al. 2025, Figure 7: about 80 times",
        ),
    ),
)

TABLE_11 = "Gu et al. 2025, Table 11"
FEED_FORWARD = {
    "relu": (16.90, 3.82),
    "gelu": (14.76, 3.79),
    "swish": (17.89, 3.80),
    "reglu": (13.88, 3.75),
    "geglu": (17.86, 3.73),
    "swiglu": (18.18, 3.73),
}

feed_forward = Question(
    name="feed-forward",
    asks="Does the sink depend on the feed-forward network's activation?",
    source=TABLE_11,
    variations=tuple(model(ffn, {"ffn": ffn}, sink_0=sink, loss=loss) for ffn, (sink, loss) in FEED_FORWARD.items()),
    assertions=all_keep_sink(tuple(FEED_FORWARD), "swiglu", f"{TABLE_11}: 13.88 to 18.18 %"),
)

TABLE_12 = "Gu et al. 2025, Table 12"
HEADS = {8: (18.18, 3.73), 4: (10.68, 3.74), 2: (12.95, 3.76), 1: (19.50, 3.78)}


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


heads = Question(
    name="heads",
    asks="Does the sink depend on the number of heads, or on how they are put together?",
    source=TABLE_12,
    variations=(
        *(
            model(_heads(count), {"num_attention_heads": count}, sink_0=sink, loss=loss)
            for count, (sink, loss) in HEADS.items()
        ),
        # The paper adds the outputs of 8 heads.
        model("4 heads, added", {"num_attention_heads": 4, "head_combination": "add"}, sink_0=21.76, loss=3.74),
    ),
    assertions=(
        *all_keep_sink(tuple(map(_heads, HEADS)), "4 heads", f"{TABLE_12}: 10.68 to 19.50 %"),
        *keeps_sink("4 heads, added", "4 heads", f"{TABLE_12}: 21.76 %"),
        within(
            0.1,
            rising("loss", tuple(map(_heads, HEADS))),
            "equal losses",
            "from 8 heads to one the validation loss changes by at most 0.1 nats along the line fitted to 8, 4, 2, 1",
            f"{TABLE_12}: 3.73 to 3.78",
        ),
    ),
)

HE = "He et al. 2024, from third parties' notes"
PROTECTED = {"attention": "qk_norm", "model.norm_placement": "outlier_protected", "model.ffn": "relu"}

outlier_protected = Question(
    name="outlier-protected",
    asks="Does a block without norms, with damped branches and normalized queries and keys, avoid outliers?",
    source=HE,
    variations=(Variation("softmax"), Variation("protected", PROTECTED)),
    assertions=(
        fewer_outliers("protected", "softmax", HE),
        above(
            0.0,
            gap("kurtosis_neurons", "softmax", "protected"),
            "even neurons",
            "the protected block spreads energy more evenly over neurons (their kurtosis is lower)",
            HE,
        ),
        *less_sink("protected", "softmax", OURS, margin=0.0),
    ),
)

QUESTIONS = (positions, post_norm, feed_forward, heads, outlier_protected)
