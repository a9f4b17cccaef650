"""Do the paper's main claims hold in models that were trained after the claims were written down?"""

from __future__ import annotations

import math

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Observed,
    Question,
    Variation,
    above_ratio,
    last,
    log_quotient,
    log_ratio,
    more_models,
    most_models,
    onset,
    times,
)

STUDY = FromRecipe(job="replication")
FRESH_BASE, FRESH = range(13, 25), range(13, 19)  # no earlier run of these variations has such a seed
SINK, MASSIVE = Has("sink_0", 3.0), Has("norm_ratio", 4.0)  # 13 untrained models have norm ratios of 2.7 to 4.0
RATE = "sink/position_0"
AT_2 = {"kind": "fixed_token", "position": 2, "token": 0}  # 0: the BOS
DOMAINS = ("numpy", "stdlib", "topics", "torch", "transformers")
PAPER = "Gu et al. 2025"


def grown(run: Observed) -> bool | None:
    """Whether the sink rate grows by more than a point after the first quarter of the steps."""
    late, early = last(run, RATE), last(run, RATE, 0.25)
    return None if math.isnan(late - early) else late - early > 1.0


def in_time(run: Observed) -> bool | None:
    """Whether the sink rate reaches 1 % within three quarters of the steps."""
    share = onset(run, RATE, 1.0)
    return None if math.isnan(share) else share <= 0.75


def alike(run: Observed) -> bool | None:
    """Whether the sink rate differs by at most 4 points over the domains of the corpus `python`."""
    rates = [run[f"sink_0/domain={domain}"] for domain in DOMAINS]
    return None if any(map(math.isnan, rates)) else max(rates) - min(rates) <= 4.0


QUESTION = Question(
    name="abstract",
    asks="Do the paper's main claims hold in models that were trained after the claims were written down?",
    source=f"{PAPER}, abstract, introduction and section 3",
    base=STUDY,
    seeds=FRESH,
    variations=(
        Variation("softmax", {}, {"sink_0": 18.18, "loss": 3.73}, FRESH_BASE),
        Variation("sigmoid", {"attention": "sigmoid"}, {"sink_0": 0.44, "loss": 3.70}),
        Variation("lr / 4", {"optimizer.lr": times(1 / 4)}, {"sink_0": 2.90, "loss": 3.92}),
        Variation("no fixed token", {"data.bos": "none"}, {"sink_0": 18.18, "loss": 3.73}),
        Variation("token at 2", {"data.bos": "none", "data.interventions": [AT_2]}, {"sink_2": 69.64, "sink_0": 0.0}),
    ),
    assertions=(
        most_models(
            "softmax",
            SINK,
            "in a small model",
            "most models of 1.3 million parameters have a sink at position 0",
            f"{PAPER}, Table 8",
        ),
        most_models(
            "softmax",
            Has("sink_0/random_after_first", 3.0),
            "random tokens",
            "most models have a sink on random tokens after the BOS",
            f"{PAPER}, Table 1",
        ),
        most_models(
            "softmax",
            grown,
            "after the start",
            "in most models the sink rate grows by more than 1 point after the first quarter of the steps",
            f"{PAPER}, Figure 4",
        ),
        most_models(
            "softmax",
            Has("resting/on_sink", at_most=0.5),
            "writes less than half",
            "in most models with a sink head, queries with more than .8 of their weight on the sink get less than half "
            "as much written as those with less than .2",
            f"{PAPER}, section 7",
        ),
        more_models(
            "softmax", "sigmoid", SINK, "sigmoid: fewer", "fewer models have a sink with sigmoid", f"{PAPER}, Table 6"
        ),
        more_models(
            "softmax",
            "no fixed token",
            SINK,
            "a BOS makes it",
            "more models have a sink with a fixed BOS than without a fixed token",
            f"{PAPER}, Table 10",
        ),
        more_models(
            "token at 2",
            "softmax",
            Has("sink_2", 1.0),
            "follows",
            "more models have a rate of 1 % at position 2 where the fixed token is there than where it is at 0",
            f"{PAPER}, Table 10",
        ),
        more_models(
            "softmax",
            "lr / 4",
            SINK,
            "a smaller rate weakens it",
            "more models have a sink with all of the learning rate than with a quarter",
            f"{PAPER}, Table 9",
        ),
        more_models(
            "softmax",
            "lr / 4",
            in_time,
            "a smaller rate delays it",
            "more models have a rate of 1 % within three quarters of the steps with all of the learning rate than with "
            "a quarter",
            f"{PAPER}, section 4",
        ),
        most_models(
            "softmax",
            alike,
            "domains: hardly",
            f"in most models the rate differs by at most 4 points over {', '.join(DOMAINS)}",
            f"{PAPER}, appendix: negligible over 17 domains of the Pile at thresholds of .2 and .3",
        ),
        above_ratio(
            1.0,
            log_quotient("softmax", "sink_mass/tokens=32", "sink_mass/tokens=128"),
            "falls with length",
            "the sink mass on 32 tokens is larger than on 128",
            f"{PAPER}, Figure 3",
        ),
        most_models(
            "softmax",
            Has("top_head/key_ratio", at_most=1.25),
            "not the length",
            "in most models the sink's key is at most 1.25 times as long as the others, in the head with the strongest "
            "sink",
            f"{PAPER}, section 3, Figure 2",
        ),
        most_models(
            "softmax",
            Has("top_head/value_ratio", at_most=0.5),
            "a small value",
            "in most models the sink's value is at most half as long as the others, in that head",
            f"{PAPER}, section 3, Figure 2",
        ),
        more_models(
            "softmax",
            "no fixed token",
            MASSIVE,
            "massive activation",
            "more models have a massive activation with a fixed BOS, and so a sink, than without",
            f"{PAPER}, section 3; Sun et al. 2024",
        ),
        above_ratio(
            1.25,
            log_ratio("kurtosis_neurons", "softmax", "no fixed token"),
            "in few channels",
            "the kurtosis over channels is more than 1.25 times as large as without a fixed BOS, and so without a sink",
            "slides of Gu et al. 2025",
        ),
        most_models(
            "softmax",
            Has("sink_0/without_first", at_most=1.0),
            "none without its BOS",
            "most models trained with a fixed BOS have a sink in at most 1 % of heads without it",
            "slides of Gu et al. 2025",
        ),
    ),
    shown=("sink_0", "sink_mass", "norm_ratio", "top_head/key_ratio", "top_head/value_ratio", "loss"),
    not_at=dict.fromkeys(("mini", "paper"), "its seeds are fresh at nano"),
)
