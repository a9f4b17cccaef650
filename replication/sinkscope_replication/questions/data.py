"""Questions about what stands at the first positions of every window of training: a fixed token, or random ones.

Source: Gu et al. 2025, section 5 and Table 10.
"""

from __future__ import annotations

import math
from typing import Any

from sinkscope.experiments import Assertion, Question, Runs, SeedEffect, SeedWise, Variation, Withdrawn, above, within
from sinkscope.experiments.effects import gap, largest, least, level, maximum_at, metric_gap, off, peak
from sinkscope_replication.assertions import FRESH, HAS_MASS, OF_MASS, POINTS, Sink, by_mass_and_rate, mass_at

SECTION_5 = "Gu et al. 2025, section 5"
TABLE_10 = "Gu et al. 2025, Table 10"
READ = range(17)  # positions of which every run says the sink rate and mass
BOS = 0  # its id in the tokenizers that recipes train


def fixed(position: int) -> dict[str, Any]:
    """Changes that put the BOS over the token at a position of every window, and nowhere else."""
    token = {"kind": "fixed_token", "position": position, "token": BOS}
    return {"data.bos": "none", "data.interventions": [token]}


fixed_token = Question(
    name="fixed-token",
    asks="Does the sink follow a token that always stands at one position?",
    source=TABLE_10,
    note="The claim of more than 3 % was stated before any run. The two on where the sink is were added when one seed "
    "of three had come to 2.6 %, with nothing at any other position.",
    variations=(
        Variation("BOS at 0", {"data.bos": "fixed"}, {"sink_0": 74.11}),
        Variation("token at 2", fixed(2), {"sink_2": 69.64, "sink_0": 0.0}),
        Variation("no fixed token", {"data.bos": "none"}, {"sink_0": 18.18, "loss": 3.73}),
    ),
    assertions=(
        above(
            1.0,
            metric_gap("token at 2", "sink_mass_2", "sink_mass"),
            "stands out, by mass",
            "with a fixed token at position 2 the sink mass there is larger than at position 0, by more than 1 point",
            f"{TABLE_10}: rates of 69.64 and 0 %",
            FRESH,
        ),
        within(
            0.5,
            off("strongest_position", "token at 2", 2.0),
            "follows",
            "with a fixed token at position 2, no other position has a higher sink rate (the effect is how far "
            "away the strongest is)",
            TABLE_10,
        ),
        above(
            1.0,
            metric_gap("token at 2", "sink_2", "sink_0"),
            "stands out",
            "with a fixed token at position 2 the sink rate there is higher than at position 0, by more than 1 point",
            TABLE_10,
        ),
        above(
            HAS_MASS,
            level("sink_mass_2", "token at 2"),
            "strong, by mass",
            f"with a fixed token at position 2 the sink mass there is more than {HAS_MASS:g} %",
            TABLE_10,
            FRESH,
        ),
        above(
            3.0,
            level("sink_2", "token at 2"),
            "strong",
            "with a fixed token at position 2 more than 3 % of heads have their sink there",
            TABLE_10,
        ),
        above(
            2.0,
            level("norm_ratio/strongest", "token at 2"),
            "the massive activation follows",
            "with a fixed token at position 2 the token at the strongest position is more than twice as long as the "
            "others at some depth",
            "Gu et al. 2025, section 5",
        ),
        *by_mass_and_rate(
            above,
            3.0,
            lambda sink: gap(sink(), "BOS at 0", "no fixed token"),
            "grows",
            "a fixed BOS at position 0 raises the sink {measure} there by more than {points}",
            TABLE_10,
        ),
    ),
    withdrawn=(
        Withdrawn(
            "leaves the first",
            "with a fixed token at position 2, less than 1 % of heads have their sink at position 0",
            "a model of this size has no sink at position 0 without a fixed token either, so it could not fail",
        ),
    ),
)

TOKENS_AT = ("BOS at 0", "token at 1", "token at 2")

fixed_positions = Question(
    name="fixed-positions",
    asks="Is the sink where the fixed token is, at each of the first three positions?",
    source=TABLE_10,
    variations=(
        Variation("BOS at 0", {"data.bos": "fixed"}, {"sink_0": 74.11, "sink_1": 0.0, "sink_2": 0.0}),
        Variation("token at 1", fixed(1), {"sink_0": 0.0, "sink_1": 69.03, "sink_2": 0.0}),
        Variation("token at 2", fixed(2), {"sink_0": 0.0, "sink_1": 0.0, "sink_2": 69.64}),
    ),
    assertions=(
        above(
            1.0,
            lambda runs: least(
                peak(mass_at(position), TOKENS_AT, at=label)(runs) for position, label in enumerate(TOKENS_AT)
            ),
            "each where its token is, by mass",
            "at each of the first three positions the model with the fixed token there has more sink mass than the "
            "other two, by more than 1 point",
            f"{TABLE_10}: rates of 74.11, 69.03, 69.64 %, and of 0.00 at the other positions",
            FRESH,
        ),
        *(
            above(
                0.5,
                maximum_at(f"sink_{position}", TOKENS_AT, at=label),
                f"strongest at {position}",
                f"of the three models, that with '{label}' has the highest sink rate at position {position} (the "
                "effect is 1 where it has, else 0)",
                TABLE_10,
            )
            for position, label in enumerate(TOKENS_AT)
        ),
        *(
            within(
                0.5,
                off("strongest_position", label, float(position)),
                f"nowhere else with {position}",
                f"with '{label}' no other of the first 32 positions has a higher sink rate (the effect is how far away "
                "the strongest is)",
                TABLE_10,
            )
            for position, label in enumerate(TOKENS_AT)
        ),
    ),
)


def where_strong(label: str, points: float, sink: Sink, effect: SeedEffect) -> SeedWise:
    """An effect in the seeds in which a model has so many points of sink rate somewhere, or a third of them of mass."""
    least = points * OF_MASS if sink is mass_at else points

    def strongest(runs: Runs) -> float:
        return largest(runs[label][sink(position)] for position in READ)

    def guarded(runs: Runs) -> float:
        value, found = effect(runs), strongest(runs)
        return value if found >= least else math.nan

    return SeedWise(guarded, "no sink that could stand anywhere", lambda runs: strongest(runs) < least)


def drawn(start: int, stop: int) -> dict[str, Any]:
    """Changes that put random tokens at positions [start, stop)."""
    return {"data.interventions": [{"kind": "random_tokens", "start": start, "stop": stop}]}


RANDOM = (
    Variation("text", {}, {"sink_0": 18.18}),
    Variation("first random", drawn(0, 1), {"sink_0": 27.03}),
    Variation("two random", drawn(0, 2), {"sink_0": 1.98, "sink_1": 14.08}),
    Variation("second random", drawn(1, 2), {"sink_0": 20.99}),
)


def _beyond_half(sink: Sink) -> SeedEffect:
    return lambda runs: runs["second random"][sink()] - runs["text"][sink()] / 2


def moved_by_random(points: float) -> tuple[Assertion, ...]:
    """What random tokens do to the sink; by more than so many points of its rate, or a third of its mass."""
    return (
        *by_mass_and_rate(
            above,
            points,
            lambda sink: gap(sink(), "first random", "text"),
            "a random first token",
            "a random token at position 0 raises the sink {measure} there by more than {points}",
            f"{SECTION_5}: rates of 18.18 to 27.03",
        ),
        *by_mass_and_rate(
            above,
            points,
            lambda sink: where_strong("two random", points, sink, metric_gap("two random", sink(1), sink())),
            "two of them",
            "with two random tokens the second is the sink: its {measure} exceeds the first one's by more than "
            "{points}",
            f"{SECTION_5}: rates of 14.08 and 1.98",
        ),
    )


def left_by_random(points: float) -> tuple[Assertion, Assertion]:
    """What a random second token leaves, where there is a sink of so many points of the rate, or a third of mass."""
    return by_mass_and_rate(
        above,
        0.0,
        lambda sink: where_strong("text", points, sink, _beyond_half(sink)),
        "a random second token",
        "a random token at position 1 alone leaves more than half of the first one's sink {measure}",
        f"{SECTION_5}: a rate of 20.99",
    )


random_tokens = Question(
    name="random-tokens",
    asks="Where is the sink when the first tokens are random?",
    source=SECTION_5,
    shared={"data.bos": "none"},
    variations=RANDOM,
    assertions=(*moved_by_random(POINTS), *left_by_random(POINTS)),
    not_at={"nano": "nano shows no sink without its fixed BOS in 1,500 steps; 'random-tokens-longer' asks in 6,000"},
)

QUESTIONS = (fixed_token, fixed_positions, random_tokens)
