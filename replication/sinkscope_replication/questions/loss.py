"""Questions about the loss: decay, prefix, window (Gu et al. 2025, Table 2 and section 6)."""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Observed,
    Question,
    Variation,
    above,
    above_ratio,
    gap,
    log_ratio,
    more_models,
    most_models,
    rising,
    times,
)

STUDY = FromRecipe(job="replication")
BASE, NEW_BASE, NEW = range(13), range(13, 25), range(13, 19)
SINK = Has("sink_0", 3.0)
TABLE_2, SECTION_6 = "Gu et al. 2025, Table 2", "Gu et al. 2025, section 6"
NANO_ONLY = dict.fromkeys(("mini", "paper"), "contexts and batch sizes are those of nano")

# Weight decay: the paper's sink rate and loss.
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


def decayed(decay: float, seeds: Any = None) -> Variation:
    """Training with another weight decay."""
    sink, loss = DECAYS[decay]
    return Variation(f"{decay:g}", {"optimizer.weight_decay": decay}, {"sink_0": sink, "loss": loss}, seeds)


weight_decay = Question(
    name="weight-decay",
    asks="Is the sink strongest at a moderate weight decay?",
    source=TABLE_2,
    base=STUDY,
    variations=(
        decayed(0.0, (0, 3, 4, 5, 6, 7, 8)),
        decayed(0.1, BASE),
        decayed(0.5, range(3, 9)),
        decayed(2.0, (0, 3, 4, 5)),
    ),
    assertions=(
        above_ratio(
            1.0,
            log_ratio("sink_mass", "0.5", "0.1"),
            "most at a moderate one",
            "the sink mass is larger with a decay of .5 than with .1",
            TABLE_2,
        ),
        more_models(
            "0.1", "2", SINK, "too much weakens it", "more models have a sink with a decay of .1 than with 2", TABLE_2
        ),
        most_models("0", SINK, "not needed", "most models have a sink without decay", TABLE_2),
    ),
    note="By what it costs, a decay is stronger here than in the paper: from .1 to .5 the loss rises by about .2 nats, "
    "there by .07.",
)

weight_decays = Question(
    name="weight-decays",
    asks="How does the sink depend on weight decay, from none to 5?",
    source=TABLE_2,
    base=STUDY,
    seeds=NEW,
    variations=tuple(decayed(decay, NEW_BASE if decay == 0.1 else None) for decay in DECAYS),
    assertions=(
        above_ratio(
            1.0,
            rising("sink_mass", ("0", "0.1", "0.5"), log=True),
            "rises to a moderate one",
            "the sink mass rises from no decay to .1 and .5",
            TABLE_2,
        ),
        above(
            0.05,
            gap("loss", "2", "0.5"),
            "loss",
            "the validation loss with a decay of 2 ends more than .05 nats above that with .5",
            TABLE_2,
            symmetric=True,
        ),
    ),
)


def in_prefix(run: Observed) -> bool | None:
    """Whether a position of the prefix after the first has a rate of 1 %."""
    rates = [run[f"sink_{position}"] for position in range(1, 5)]
    return None if any(rate != rate for rate in rates) else max(rates) >= 1.0


PREFIXES = (Variation("causal"), Variation("prefix of 5", {"loss.prefix": 5}))
WITHIN = (
    more_models(
        "prefix of 5",
        "causal",
        in_prefix,
        "within the prefix",
        "more models have a rate of 1 % at the second to fifth position with a prefix of 5 tokens than without one",
        SECTION_6,
    ),
)

prefix = Question(
    name="prefix",
    asks="Where is the sink in prefix language modeling?",
    source=SECTION_6,
    base=STUDY,
    seeds=6,
    shared={"data.bos": "none"},
    variations=PREFIXES,
    assertions=WITHIN,
    not_at={
        "nano": "nano has no sink without its fixed BOS in 1,500 steps, and with one the BOS is in the prefix; "
        "'prefix-longer' asks in 6,000"
    },
)

prefix_longer = Question(
    name="prefix-longer",
    asks="Where is the sink in prefix language modeling, in four times the steps?",
    source=SECTION_6,
    base=STUDY,
    seeds=range(3, 9),
    shared={"data.bos": "none", "steps": times(4.0)},
    variations=PREFIXES,
    assertions=WITHIN,
    not_at=dict.fromkeys(("mini", "paper"), "it asks what can be asked at nano"),
)


# A first token that only 32 of 64 queries see never has a high rate: windows are compared on texts as short as the
# shortest window, which hides nothing of them.
WIDE = {"context": 256, "batch_size": 16}  # as many tokens a step as nano
HALF = "sink_0/tokens=32/epsilon=0.5"


def windowed(size: int, seeds: Any = None) -> Variation:
    """Training with a window of so many tokens."""
    mask = {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": size}}
    return Variation(f"window of {size}", {"attention": {"mask": mask}}, seeds=seeds)


window = Question(
    name="window",
    asks="Does a short window prevent the sink?",
    source=SECTION_6,
    base=STUDY,
    seeds=range(3, 9),
    shared=WIDE,
    variations=(Variation("causal"), windowed(32), windowed(64, range(3, 10))),
    assertions=(
        more_models(
            "causal",
            "window of 32",
            Has(HALF, 3.0),
            "short prevents it",
            "on 32 tokens, at a threshold of .5, more models have a sink with full attention than with a window of 32",
            SECTION_6,
        ),
        most_models(
            "window of 64",
            Has("strongest_position/tokens=128", 0, 0),
            "on the absolute first token",
            "on 128 tokens the strongest position of most models with a window of 64 is 0",
            SECTION_6,
        ),
    ),
    not_at=NANO_ONLY,
)

windows = Question(
    name="windows",
    asks="From which window on does the sink emerge?",
    source=SECTION_6,
    base=STUDY,
    seeds=NEW,
    shared=WIDE,
    variations=(Variation("causal"), *map(windowed, (32, 64, 128))),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass/tokens=32", ("window of 32", "window of 64", "window of 128", "causal"), log=True),
            "monotone",
            "on 32 tokens the sink mass rises more than 1.25 times from a window of 32 to full attention",
            SECTION_6,
        ),
    ),
    not_at=NANO_ONLY,
)

QUESTIONS = (weight_decay, weight_decays, prefix, prefix_longer, window, windows)
