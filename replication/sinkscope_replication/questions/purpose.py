"""Questions about what a sink is good for: less mixing, tokens that stay apart, streams.

Source: Barbero et al. 2025; Xiao et al. 2024; Miller 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sinkscope.experiments import Contrast, Question, Runs, SeedEffect, Variation, Withdrawn, above, above_ratio
from sinkscope.experiments.effects import log_quotient, log_ratio, metric_gap, quotient, rising
from sinkscope.statistics.ranks import rank_correlation
from sinkscope_replication.assertions import FRESH, OURS
from sinkscope_replication.questions.mechanism import NO_TOKEN
from sinkscope_replication.questions.variations import SOFTMAX, model, operation

BARBERO = "Barbero et al. 2025"
DEPTHS = (2, 4, 8)
REACH = 1.05  # of the change that arrives without the sink over the one that arrives with it


def _reach(label: str) -> Contrast:
    """By how much further a change reaches where the window lacks its BOS, as a logarithm."""
    return log_quotient(label, "perturbation/without_first", "perturbation")


over_mixing = Question(
    name="over-mixing",
    asks="Does the sink keep tokens from mixing, and do deeper models have more of it?",
    source=BARBERO,
    variations=(
        *(model(f"{layers} layers", {"num_hidden_layers": layers}) for layers in DEPTHS),
        operation("k_bias"),
    ),
    note="What the BOS does to a change it does to some extent in models without a sink too, by 13 to 20 %. So the "
    "first claim compares with a model that has the BOS and whose sink is a key bias; it came when the runs had been "
    "seen.",
    assertions=(
        above_ratio(
            REACH,
            _reach("4 layers") - _reach("k_bias"),
            "further than without a sink",
            "without its BOS a change of one token moves the later ones more, and more so than in a model whose sink a "
            "key bias took: by more than 5 % of that model's factor",
            f"{BARBERO}; the comparison is ours",
        ),
        above(
            REACH,
            quotient("4 layers", "perturbation/without_first", "perturbation"),
            "changes reach further without it",
            "a change of one token moves the later ones more where the window lacks its BOS, by more than 5 %",
            f"{BARBERO}: Gemma-7B with and without BOS",
        ),
        above(
            REACH,
            quotient("8 layers", "perturbation/without_first", "perturbation"),
            "also in the deepest",
            "in a model of 8 layers, too, a change of one token moves the later ones more without the BOS, by more "
            "than 5 %",
            f"{BARBERO}: Gemma-7B with and without BOS",
        ),
        above(
            1.0,
            rising("sink_mass", tuple(f"{layers} layers" for layers in DEPTHS)),
            "deeper, stronger, by mass",
            "the sink mass rises with depth (2, 4, 8 layers) by more than 1 point along the fitted line",
            f"{BARBERO}: rates of Llama-3.1 of 8, 70 and 405 billion parameters, 45.97, 73.49, 78.29 %",
            FRESH,
        ),
        above(
            1.0,
            rising("sink_0", tuple(f"{layers} layers" for layers in DEPTHS)),
            "deeper, stronger",
            "the sink rate rises with depth (2, 4, 8 layers) by more than 1 point along the fitted line",
            f"{BARBERO}: Llama-3.1 of 8, 70 and 405 billion parameters, 45.97, 73.49, 78.29 %",
        ),
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)

ANY_AT_ALL = (
    "a difference of any size counted, between two models that differ in what they read as well; now 5 % are asked, "
    "which such a difference alone need not make"
)

collapse = Question(
    name="collapse",
    asks="Does a sink keep a model's tokens from becoming alike?",
    source=BARBERO,
    note="The question was first asked of absolute lengths over all tokens, where the first token's length alone "
    "decides, then of the others relative to their own lengths, with a margin of nothing.",
    variations=(Variation("softmax"), NO_TOKEN),
    assertions=(
        above_ratio(
            1.05,
            log_ratio("relative_spread", "softmax", "no fixed token"),
            "rank, by 5 %",
            "behind the last block the hidden states of all tokens but the first are further from their mean, in terms "
            "of their length, with a fixed BOS than without: more than 1.05 times as far",
            f"{BARBERO}; rank collapse",
        ),
        above_ratio(
            1.05,
            log_ratio("relative_pair_distance", "softmax", "no fixed token"),
            "representations, by 5 %",
            "behind the last block the last two tokens are further apart, in terms of their length, with a fixed BOS "
            "than without: more than 1.05 times as far",
            f"{BARBERO}; representational collapse",
        ),
    ),
    withdrawn=(
        Withdrawn(
            "rank",
            "behind the last block the hidden states of all tokens but the first are further from their mean, in terms "
            "of their length, with a fixed BOS than without",
            ANY_AT_ALL,
        ),
        Withdrawn(
            "representations",
            "behind the last block the last two tokens are further apart, in terms of their length, with a fixed BOS "
            "than without",
            ANY_AT_ALL,
        ),
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)

STREAMS = ("stream_loss/sinks=0", "stream_loss/sinks=1", "stream_loss/sinks=4")
SHOWN = ("loss", "sink_0", *STREAMS)
XIAO = "Xiao et al. 2024, Tables 1 and 3"
LEAST = 0.01  # nats; nano's validation loss differs by a few thousandths between seeds
OPERATIONS = ("softmax_off_by_one", "k_bias", "v_bias", "sigmoid", "clipped_softmax", "gated_elementwise")


def cost(label: str) -> Contrast:
    """By how much the loss of a stream rises, in nats, when its first four tokens are not kept."""
    return metric_gap(label, STREAMS[0], STREAMS[2])


def follows(metric: str, labels: Sequence[str]) -> SeedEffect:
    """Spearman's ρ over the runs of a seed between a metric and what the first tokens are worth in a stream."""

    def effect(runs: Runs) -> float:
        pairs = np.array([(runs[label][metric], cost(label)(runs)) for label in labels])
        return math.nan if np.isnan(pairs).any() else float(rank_correlation(*pairs.T))

    return effect


streaming = Question(
    name="streaming",
    asks="Does a stream need the first tokens because the model has its sink there?",
    source=XIAO,
    variations=(SOFTMAX, *(operation(name) for name in OPERATIONS)),
    assertions=(
        above(
            0.5,
            follows("first_share", ("softmax", *OPERATIONS)),
            "follows the sink",
            "over the operations, what dropping the first four tokens costs a stream rises with the attention on the "
            "first: a rank correlation above 0.5",
            OURS,
        ),
        above(
            LEAST,
            cost("softmax"),
            "softmax needs them",
            f"a softmax model's stream loses more than {LEAST:g} nats without its first four tokens",
            f"{XIAO}: perplexity 5158.07 without them, 5.40 with four (Llama-2-13B)",
        ),
        above(
            LEAST,
            cost("softmax_off_by_one") - cost("softmax"),
            "off-by-one needs them more",
            f"trained with off-by-one attention, they are worth more than with softmax by over {LEAST:g} nats",
            f"{XIAO}: perplexity without them 29214 with a zero sink, 27.87 with softmax (160M); Miller 2023 expects "
            "the opposite",
        ),
    ),
    shown=SHOWN,
    note="Streams hold as many keys as the context is long; loss is of the tokens behind the first context.",
)

QUESTIONS = (over_mixing, collapse, streaming)
