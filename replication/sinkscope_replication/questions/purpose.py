"""Questions about what a sink is good for: less mixing, tokens that stay apart, streams.

Source: Barbero et al. 2025; Xiao et al. 2024; Miller 2023.
"""

from __future__ import annotations

from sinkscope.experiments import (
    Contrast,
    FromRecipe,
    Question,
    Variation,
    above,
    above_ratio,
    log_quotient,
    log_ratio,
    metric_gap,
    rising,
)

STUDY = FromRecipe(job="replication")
BASE, NEW_BASE, NEW = range(13), range(13, 25), range(13, 19)
BARBERO, XIAO = "Barbero et al. 2025", "Xiao et al. 2024, Tables 1 and 3"
DEPTHS = (2, 4, 8)


def reach(label: str) -> Contrast:
    """By how much further a change reaches where the window lacks its BOS, as a logarithm."""
    return log_quotient(label, "perturbation/without_first", "perturbation")


over_mixing = Question(
    name="over-mixing",
    asks="Does the sink keep tokens from mixing?",
    source=BARBERO,
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("2 layers", {"model.num_hidden_layers": 2}),
        Variation("4 layers", {"model.num_hidden_layers": 4}, seeds=BASE),
        Variation("8 layers", {"model.num_hidden_layers": 8}),
        Variation("k_bias", {"attention": "k_bias"}, seeds=6),
    ),
    assertions=(
        above_ratio(
            1.05,
            reach("4 layers") - reach("k_bias"),
            "further than without a sink",
            "without its BOS a change of one token moves later ones more, and by more than 5 % more so than in a model "
            "whose sink a key bias took",
            f"{BARBERO}; the comparison is ours",
        ),
        above_ratio(
            1.25,
            rising("sink_mass", tuple(f"{layers} layers" for layers in DEPTHS), log=True),
            "deeper, stronger",
            "the sink mass rises more than 1.25 times from 2 to 8 layers",
            f"{BARBERO}: Llama-3.1 of 8, 70 and 405 billion parameters, 45.97, 73.49, 78.29 %",
        ),
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)

collapse = Question(
    name="collapse",
    asks="Does a sink keep a model's tokens from becoming alike?",
    source=BARBERO,
    base=STUDY,
    seeds=6,
    variations=(
        Variation("softmax", {"attention": "softmax"}, {"sink_0": 18.18, "loss": 3.73}, BASE),
        Variation("no fixed token", {"data.bos": "none"}),
    ),
    assertions=tuple(
        above_ratio(
            1.05,
            log_ratio(metric, "softmax", "no fixed token"),
            name,
            f"after the last block {what} are further apart, as a share of their length, with a fixed BOS than "
            "without, by more than 5 %",
            BARBERO,
        )
        for name, metric, what in (
            ("rank", "relative_spread", "all tokens but the first"),
            ("representations", "relative_pair_distance", "the last two tokens"),
        )
    ),
    not_at={"paper": "the paper trains without a fixed BOS"},
)

STREAMS = ("stream_loss/sinks=0", "stream_loss/sinks=1", "stream_loss/sinks=4")
OPERATIONS = {"softmax_off_by_one": 6, "k_bias": 6, "v_bias": 3, "sigmoid": 6, "clipped_softmax": 6}


def cost(label: str) -> Contrast:
    """By how much the loss of a stream rises, in nats, when its first four tokens are not kept."""
    return metric_gap(label, STREAMS[0], STREAMS[2])


streaming = Question(
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

QUESTIONS = (over_mixing, collapse, streaming)
