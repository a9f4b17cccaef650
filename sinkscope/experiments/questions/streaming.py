"""Questions about what a stream loses with its first tokens (Xiao et al. 2024; Miller 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sinkscope import ranks
from sinkscope.experiments.assertions import OURS
from sinkscope.experiments.question import Question, Runs, SeedEffect, above
from sinkscope.experiments.questions.variations import SOFTMAX, operation

STREAMS = ("stream_loss/sinks=0", "stream_loss/sinks=1", "stream_loss/sinks=4")
SHOWN = ("loss", "sink_0", *STREAMS)
XIAO = "Xiao et al. 2024, Tables 1 and 3"
LEAST = 0.01  # nats; nano's validation loss differs by a few thousandths between seeds
OPERATIONS = ("softmax_off_by_one", "k_bias", "v_bias", "sigmoid", "clipped_softmax", "gated_elementwise")


def cost(runs: Runs, label: str) -> float:
    """By how much the loss of a stream rises, in nats, when its first four tokens are not kept."""
    return runs[label][STREAMS[0]] - runs[label][STREAMS[2]]


def follows(metric: str, labels: Sequence[str]) -> SeedEffect:
    """Spearman's ρ over the runs of a seed between a metric and what the first tokens are worth in a stream."""

    def effect(runs: Runs) -> float:
        pairs = np.array([(runs[label][metric], cost(runs, label)) for label in labels])
        return math.nan if np.isnan(pairs).any() else float(ranks.rank_correlation(*pairs.T))

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
            lambda runs: cost(runs, "softmax"),
            "softmax needs them",
            f"a softmax model's stream loses more than {LEAST:g} nats without its first four tokens",
            f"{XIAO}: perplexity 5158.07 without them, 5.40 with four (Llama-2-13B)",
        ),
        above(
            LEAST,
            lambda runs: cost(runs, "softmax_off_by_one") - cost(runs, "softmax"),
            "off-by-one needs them more",
            f"trained with off-by-one attention, they are worth more than with softmax by over {LEAST:g} nats",
            f"{XIAO}: perplexity without them 29214 with a zero sink, 27.87 with softmax (160M); Miller 2023 expects "
            "the opposite",
        ),
    ),
    shown=SHOWN,
    note="Streams hold as many keys as the context is long; loss is of the tokens behind the first context.",
)

QUESTIONS = (streaming,)
