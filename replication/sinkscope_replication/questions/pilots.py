"""Pilots: is there a sink without a fixed BOS, and does a model of more heads decide more in an hour?

What they find is kept whatever it says. `micro` is a recipe of its own, so its runs stand among those of nano. The
first pilot found a faint sink after four times the steps, so what the paper says of prefixes and of random tokens is
asked there, with the first pilot's margins: a third of a point of mass, one of the rate.
"""

from __future__ import annotations

from sinkscope.experiments import Question, Runs, Scale, SeedEffect, Variation, above
from sinkscope.experiments.effects import largest, level
from sinkscope_replication.assertions import FRESH, HAS_MASS, Sink, by_mass_and_rate, rate_at
from sinkscope_replication.questions.data import RANDOM, READ, left_by_random, moved_by_random, where_strong
from sinkscope_replication.questions.variations import micro, relative, times

ONLY_NANO: dict[Scale, str] = dict.fromkeys(("mini", "paper"), "it asks what can be asked at nano")

LONGER = {"data.bos": "none", "steps": times(4.0)}
FAINT = 1.0  # points of a rate; a third of them of a mass

longer = Question(
    name="rotary-without-bos",
    asks="Does a sink form without a fixed BOS in four times the steps?",
    source="Gu et al. 2025, Figure 4",
    shared=LONGER,
    variations=(Variation("6,000 steps", {}, {"sink_0": 18.18}),),
    assertions=(
        above(
            0.33,
            level("sink_mass", "6,000 steps"),
            "a sink without a BOS",
            "without a fixed BOS, after four times the steps, the sink mass at position 0 is more than 0.33 %",
            "Gu et al. 2025, Table 3: a rate of 18.18 %",
            FRESH,
        ),
        above(
            1.0,
            level("sink_0", "6,000 steps"),
            "and a rate",
            "and more than 1 % of heads have their sink there",
            "Gu et al. 2025, Table 3: 18.18 %",
        ),
    ),
    base=relative,
    not_at=ONLY_NANO,
)

PREFIX = range(5)
BEHIND_IT = range(len(PREFIX), len(READ))


def _in_prefix(sink: Sink) -> SeedEffect:
    return lambda runs: largest(runs["prefix of 5"][sink(position)] for position in PREFIX)


def _behind_first(sink: Sink) -> SeedEffect:
    def largest_in(runs: Runs, label: str) -> float:
        return largest(runs[label][sink(position)] for position in PREFIX[1:])

    def moved(runs: Runs) -> float:
        return largest_in(runs, "prefix of 5") - largest_in(runs, "causal")

    return where_strong("prefix of 5", FAINT, rate_at, moved)


def _ahead_of_later(sink: Sink) -> SeedEffect:
    def ahead(runs: Runs) -> float:
        return _in_prefix(sink)(runs) - largest(runs["prefix of 5"][sink(position)] for position in BEHIND_IT)

    return where_strong("prefix of 5", FAINT, rate_at, ahead)


prefix = Question(
    name="prefix-longer",
    asks="Where is the sink in prefix language modeling, in four times the steps?",
    source="Gu et al. 2025, section 6",
    shared=LONGER,
    variations=(Variation("causal"), Variation("prefix of 5", {"loss.prefix": len(PREFIX)})),
    # That a sink stands at one of five tokens is met by one that stays at the first, as without a prefix.
    assertions=(
        *by_mass_and_rate(
            above,
            FAINT,
            _behind_first,
            "behind the first token",
            "with a prefix of 5 tokens the largest sink {measure} at its second to fifth is larger by more than "
            "{points} than at these positions without a prefix",
            "Gu et al. 2025, section 6",
        ),
        *by_mass_and_rate(
            above,
            FAINT,
            _in_prefix,
            "in the prefix",
            "with a prefix of 5 tokens the sink {measure} at one of them is more than {points}",
            "Gu et al. 2025, section 6",
        ),
        *by_mass_and_rate(
            above,
            FAINT,
            _ahead_of_later,
            "not behind it",
            "with a prefix of 5 tokens the largest sink {measure} among them exceeds that at any of the 12 tokens "
            "behind by more than {points}",
            "Gu et al. 2025, section 6",
        ),
    ),
    base=relative,
    not_at=ONLY_NANO,
    note="Refused where no head has a sink at any position, as in all three models here (at most 0.5 % of them do): "
    "what is not there cannot move. That was added when the runs had been seen; before it they counted as a "
    "refutation.",
)

random_tokens = Question(
    name="random-tokens-longer",
    asks="Where is the sink when the first tokens are random, in four times the steps?",
    source="Gu et al. 2025, section 5",
    shared=LONGER,
    variations=RANDOM,
    assertions=(*moved_by_random(FAINT), left_by_random(FAINT)[0]),
    base=relative,
    not_at=ONLY_NANO,
    note="What a random second token leaves is asked of the mass alone: the rate of models without a BOS is below the "
    "point that would have to be there.",
)


def _shape(layers: int, heads: int) -> Variation:
    changes = {"model.num_hidden_layers": layers, "model.num_attention_heads": heads}
    return Variation(f"{layers} layers of {heads} heads", changes)


micro_pilot = Question(
    name="micro-pilot",
    asks="Which model of more heads shows a sink, and is it worth its hours?",
    source="our question",
    variations=(
        _shape(4, 8),
        _shape(6, 8),
        _shape(8, 4),
        Variation("k_bias, no BOS", {"attention": "k_bias", "data.bos": "none"}),
    ),
    assertions=(
        above(
            HAS_MASS,
            level("sink_mass", "6 layers of 8 heads"),
            "a sink",
            f"6 layers of 8 heads have a sink mass of more than {HAS_MASS:g} % at position 0",
            "our question",
            FRESH,
        ),
        above(
            1.0,
            level("slot_mass", "k_bias, no BOS"),
            "on a key bias",
            "without a BOS the sink mass of a key bias is more than 1 %",
            "our question; Gu et al. 2025, Table 4",
            FRESH,
        ),
    ),
    base=micro,
    not_at=ONLY_NANO,
    note="The recipe is adopted as a scale where the effect over its spread, in an hour of a core, is at least one and "
    "a half times that of nano. It is not: a sink mass of 6.9 % with a standard deviation of 0.75 (three seeds) is 9.2 "
    "in 21 minutes, nano's 5.0 % with 0.70 (seven seeds) is 7.1 in 7 minutes of the same core. So micro gives 0.4 "
    "times as much. A key bias without a BOS says the same: 13.1 % with 0.62 in 20 minutes, nano's 8.5 % with 0.52 in "
    "6.6: 0.4 times again.",
)

QUESTIONS = (longer, prefix, random_tokens, micro_pilot)
