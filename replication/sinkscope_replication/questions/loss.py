"""Questions about the loss: decay, prefix, window (Gu et al. 2025, Table 2 and section 6)."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from sinkscope.experiments import Contrast, Question, Scale, Variation, Withdrawn, above, below, within
from sinkscope.experiments.effects import gap, largest, level, rising, where
from sinkscope_replication.assertions import FRESH, HAS_MASS, NO_COST, NONE, Sink, by_mass_and_rate, mass_at

TABLE_2 = "Gu et al. 2025, Table 2"
SECTION_6 = "Gu et al. 2025, section 6"
SECTION_L3 = "Gu et al. 2025, section 6"
ON_16_TOKENS = (
    "no rate is read on fewer than 32 tokens: on 16 uniform attention alone gives the first one 0.21, and a model "
    "without a sink, trained with an eighth of the learning rate, had a rate of 32 % there"
)


def _window(size: int) -> dict[str, object]:
    mask = {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": size}}
    return {"attention": {"mask": mask}}


DECAYS = {
    0.0: (15.20, 3.72),
    0.001: (15.39, 3.72),
    0.01: (15.23, 3.72),
    0.1: (18.18, 3.73),
    0.5: (41.08, 3.80),
    1.0: (37.71, 3.90),
    2.0: (6.13, 4.23),
    5.0: (0.01, 5.24),
}


def _decay(decay: float) -> Variation:
    sink, loss = DECAYS[decay]
    return Variation(f"{decay:g}", {"optimizer.weight_decay": decay}, {"sink_0": sink, "loss": loss})


LARGEST_OF_SEVERAL = (
    "the largest of several noisy numbers is above any one of them where all are alike, so that it was refuted too "
    "easily: each of the others is asked by itself"
)


def _more_at_half(other: str, sink: Sink) -> Contrast:
    return gap(sink(), "0.5", other)


weight_decay = Question(
    name="weight-decay",
    asks="Is the sink strongest at a moderate weight decay?",
    source=TABLE_2,
    note="By what it costs, a decay is stronger here than in the paper: from 0.1 to 0.5 the loss rises by about 0.2 "
    "nats, there by 0.07.",
    variations=tuple(map(_decay, (0.0, 0.1, 0.5, 2.0))),
    assertions=(
        *(
            claim
            for other in ("0", "0.1", "2")
            for claim in by_mass_and_rate(
                above,
                0.0,
                partial(_more_at_half, other),
                f"more than with {other}",
                f"with a decay of 0.5 the sink {{measure}} is larger than with {other}",
                f"{TABLE_2}: rates of 15.20, 18.18, 41.08, 6.13 % with 0, 0.1, 0.5, 2",
            )
        ),
        *by_mass_and_rate(
            above,
            1.0,
            lambda sink: gap(sink(), "0.1", "2"),
            "too much",
            "with a decay of 2 the sink {measure} is lower than with 0.1, by more than {points}",
            TABLE_2,
        ),
        above(
            HAS_MASS,
            level("sink_mass", "0"),
            "not needed, by mass",
            f"without decay the sink mass is more than {HAS_MASS:g} %",
            TABLE_2,
            FRESH,
        ),
        above(3.0, level("sink_0", "0"), "not needed", "without decay there is a sink (more than 3 %)", TABLE_2),
    ),
    withdrawn=(
        Withdrawn(
            "peak",
            "of 0, 0.1, 0.5 and 2 a decay of 0.5 has the largest sink mass, and the highest sink rate",
            LARGEST_OF_SEVERAL,
        ),
    ),
)

weight_decays = Question(
    name="weight-decays",
    asks="How does the sink depend on weight decay, from none to 5?",
    source=TABLE_2,
    variations=tuple(map(_decay, DECAYS)),
    assertions=(
        *by_mass_and_rate(
            within,
            6.25,
            lambda sink: rising(sink(), ("0", "0.001", "0.01")),
            "small ones are alike",
            "from no decay to 0.01 the sink {measure} changes by at most {points} along the line fitted to 0, 0.001 "
            "and 0.01 (one of nano's heads is 6.25 points of the rate)",
            f"{TABLE_2}: rates of 15.20, 15.39, 15.23 %",
        ),
        *(
            above(
                NO_COST,
                gap("loss", more, less),
                f"loss from {less} to {more}",
                f"the validation loss with a decay of {more} ends more than {NO_COST:g} nats above that with {less}",
                f"{TABLE_2}: 3.73, 3.80, 4.23, 5.24",
            )
            for less, more in pairwise(("0.1", "0.5", "2", "5"))
        ),
    ),
    note="A decay of 1 is in the paper's table too; no claim reads it.",
    withdrawn=(
        Withdrawn(
            "maximum",
            "of the eight decays 0.5 has the largest sink mass, and the highest sink rate",
            "runs of 'weight-decay' had settled it, since 0.5 has less than 0: it could not hold",
        ),
        Withdrawn(
            "small ones are alike, by their range",
            "decays of 0, 0.001 and 0.01 have sink masses within 1 point, and rates within 3",
            "a range of three noisy numbers is above zero where nothing differs: it could hardly hold",
        ),
        Withdrawn(
            "none",
            "with 5 the sink mass at position 0 is less than 0.5 %, and less than 1 % of heads have their sink there",
            "a model that ends 1.5 nats behind, as the paper's does, has nearly uniform attention, and so no sink for "
            "that reason alone",
        ),
        Withdrawn(
            "loss",
            "the validation loss rises with the decay on the whole (rank correlation above 0.7)",
            "with the losses of 0.1, 0.5 and 2 known it could not fail",
        ),
    ),
)

prefix = Question(
    name="prefix",
    asks="Where is the sink in prefix language modeling?",
    source=SECTION_6,
    shared={"data.bos": "none"},
    variations=(Variation("causal"), Variation("prefix of 5", {"loss.prefix": 5})),
    assertions=(
        above(
            1.0,
            lambda runs: largest(runs["prefix of 5"][mass_at(position)] for position in range(5)),
            "in the prefix, by mass",
            "with a prefix of 5 tokens the sink mass at one of them is more than 1 %",
            SECTION_6,
            FRESH,
        ),
        above(
            3.0,
            lambda runs: largest(runs["prefix of 5"][f"sink_{position}"] for position in range(5)),
            "in the prefix",
            "with a prefix of 5 tokens more than 3 % of heads have their sink on one of them",
            SECTION_6,
        ),
        below(
            4.5,
            level("strongest_position", "prefix of 5"),
            "not behind it",
            "with a prefix of 5 tokens the position with the highest sink rate is one of these five",
            SECTION_6,
        ),
    ),
    not_at={
        "nano": "nano shows no sink without its fixed BOS in 1,500 steps, and with one the BOS is in the prefix; "
        "'prefix-longer' asks in 6,000"
    },
)

WIDE: dict[str, object] = {"context": 256, "batch_size": 16}  # as many tokens a step as before
CONTEXTS_OF_NANO: dict[Scale, str] = dict.fromkeys(("mini", "paper"), "contexts and batch sizes are those of nano")

HALF = "/tokens=32/epsilon=0.5"
NOT_GONE = (
    "on 64 tokens a window of 32 hides the first from half of the queries, so that no head can have a rate there, and "
    "models without a sink have more mass than this limit; on 32 tokens models without a sink read rates of 2 to 6 %"
)

window = Question(
    name="window",
    asks="Does a short window prevent the sink?",
    source=SECTION_L3,
    note="Whether the sink is gone, and not only weaker, was asked when these runs had been seen, and for the third "
    "time: at a threshold of a half, which on 32 tokens hardly a head of a model without a sink comes to (0.12 % of "
    "them with an eighth of the learning rate).",
    # The metric divides by all queries: a first token that only 32 of 64 can see never reaches much. So windows are
    # compared on texts as short as the shortest, of which they hide nothing.
    shared=WIDE,
    variations=(Variation("causal"), Variation("window of 32", _window(32)), Variation("window of 64", _window(64))),
    assertions=(
        above(
            1.0,
            gap("sink_mass/tokens=32", "causal", "window of 32"),
            "short, by mass",
            "on 32 tokens a model trained with a window of 32 has less sink mass than one with full causal attention, "
            "by more than 1 point",
            SECTION_L3,
            FRESH,
        ),
        above(
            1.0,
            gap("sink_0/tokens=32", "causal", "window of 32"),
            "short",
            "on 32 tokens a model trained with a window of 32 has a lower sink rate than one with full causal "
            "attention, by more than 1 point",
            SECTION_L3,
        ),
        above(
            0.0,
            gap("sink_mass/tokens=32", "window of 64", "window of 32"),
            "grows, by mass",
            "on 32 tokens a window of 64 has more sink mass than one of 32",
            SECTION_L3,
            FRESH,
        ),
        above(
            0.0,
            gap("sink_0/tokens=32", "window of 64", "window of 32"),
            "grows",
            "on 32 tokens a window of 64 has a higher rate than one of 32",
            SECTION_L3,
        ),
        below(
            NONE,
            where(
                "causal",
                f"sink_0{HALF}",
                3.0,
                level(f"sink_0{HALF}", "window of 32"),
                "no sink without a window that one could prevent",
            ),
            "none, at a threshold of a half",
            f"on 32 tokens less than {NONE:g} % of heads of a model trained with a window of 32 give more than half of "
            "their attention to the first",
            SECTION_L3,
        ),
        below(
            0.5,
            where(
                "window of 64",
                f"sink_0{HALF}",
                1.0,
                level("strongest_position/tokens=128", "window of 64"),
                "no sink at the first token to stand anywhere",
            ),
            "on the absolute first token",
            "on 128 tokens, where a window of 64 hides the first one from half of the queries, the position with the "
            "highest sink rate is still 0 (asked where more than 1 % of heads give it half of their attention on 32)",
            SECTION_L3,
        ),
    ),
    withdrawn=(
        Withdrawn(
            "short, on 16 tokens",
            "on 16 tokens a model trained with a window of 16 has a lower sink rate than one with full causal "
            "attention, by more than 1 point",
            ON_16_TOKENS,
        ),
        Withdrawn("no mass", "with window of 32 the sink mass at position 0 is less than 0.5 %", NOT_GONE),
        Withdrawn("none", "with window of 32 less than 1 % of heads have their sink at position 0", NOT_GONE),
        Withdrawn("grows, on 16 tokens", "on 16 tokens a window of 64 has a higher rate than one of 16", ON_16_TOKENS),
        Withdrawn(
            "prevented, by mass",
            "on 32 tokens a model trained with a window of 32 has a sink mass of less than 1 %",
            "it could not hold: on 32 tokens uniform attention has a mass of 2.68 %, and models without a sink have "
            "1.5 to 3.9 %",
        ),
    ),
    not_at=CONTEXTS_OF_NANO,
)

WINDOWS = (32, 64, 128)

windows = Question(
    name="windows",
    asks="From which window on does the sink emerge?",
    source=SECTION_L3,
    shared=WIDE,
    variations=(Variation("causal"), *(Variation(f"window of {size}", _window(size)) for size in WINDOWS)),
    assertions=(
        above(
            0.33,
            rising("sink_mass/tokens=32", (*(f"window of {size}" for size in WINDOWS), "causal")),
            "monotone, by mass",
            "on 32 tokens the sink mass rises with the window (32, 64, 128, all of 256) by more than 0.33 points "
            "along the fitted line",
            f"{SECTION_L3}: from 32 to 1024 of 2048 tokens, emerging at 256",
            FRESH,
        ),
        above(
            1.0,
            rising("sink_0/tokens=32", (*(f"window of {size}" for size in WINDOWS), "causal")),
            "monotone",
            "on 32 tokens the sink rate rises with the window (32, 64, 128, all of 256) by more than 1 point along "
            "the fitted line",
            f"{SECTION_L3}: from 32 to 1024 of 2048 tokens, emerging at 256",
        ),
    ),
    withdrawn=(
        Withdrawn(
            "monotone, on 16 tokens",
            "on 16 tokens the sink rate rises with the window (16, 32, 64, all) by more than 1 point along the fitted "
            "line",
            ON_16_TOKENS,
        ),
    ),
    not_at=CONTEXTS_OF_NANO,
)

QUESTIONS = (weight_decay, weight_decays, prefix, window, windows)
