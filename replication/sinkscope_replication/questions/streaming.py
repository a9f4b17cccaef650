"""Does a stream need the first tokens because the model has its sink there?"""

from __future__ import annotations

from sinkscope.experiments import Contrast, FromRecipe, Question, Variation, above, metric_gap

STUDY = FromRecipe(job="replication")
BASE = range(13)
XIAO = "Xiao et al. 2024, Tables 1 and 3"
STREAMS = ("stream_loss/sinks=0", "stream_loss/sinks=1", "stream_loss/sinks=4")
OPERATIONS = {"softmax_off_by_one": 6, "k_bias": 6, "v_bias": 3, "sigmoid": 6, "clipped_softmax": 6}


def cost(label: str) -> Contrast:
    """By how much the loss of a stream rises, in nats, when its first four tokens are not kept."""
    return metric_gap(label, STREAMS[0], STREAMS[2])


QUESTION = Question(
    name="streaming",
    asks="Does a stream need the first tokens because the model has its sink there?",
    source=XIAO,
    base=STUDY,
    seeds=3,
    variations=(
        Variation("softmax", {"attention": "softmax"}, {"sink_0": 18.18, "loss": 3.73}, BASE),
        *(Variation(name, {"attention": name}, seeds=seeds) for name, seeds in OPERATIONS.items()),
        Variation("gated_elementwise", {"attention": "gated_elementwise"}),
    ),
    assertions=(
        above(
            0.01,
            cost("softmax"),
            "softmax needs them",
            "a softmax model's stream loses more than .01 nats without its first four tokens",
            f"{XIAO}: perplexity 5158.07 without them, 5.40 with four (Llama-2-13B)",
            symmetric=True,
        ),
        above(
            0.01,
            cost("softmax_off_by_one") - cost("softmax"),
            "off-by-one needs them more",
            "they are worth more to softmax-off-by-one than to softmax, by more than .01 nats",
            f"{XIAO}: perplexity without them 29214 with a zero sink, 27.87 with softmax (160M)",
            symmetric=True,
        ),
    ),
    shown=("loss", "sink_0", *STREAMS),
    note="Streams hold as many keys as the context is long; the loss is of the tokens after the first context.",
)
