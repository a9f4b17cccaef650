"""Questions about what makes a sink, and what it does, in a finished model (Gu et al. 2025, section 7, Table 7)."""

from __future__ import annotations

from dataclasses import replace

from sinkscope.experiments import (
    Assertion,
    Question,
    SeedEffect,
    SeedWise,
    Variation,
    Withdrawn,
    above,
    above_ratio,
    below,
)
from sinkscope.experiments.effects import ahead_of, least, level, log_quotient, log_ratio, metric_gap, where
from sinkscope_replication.assertions import FRESH, HAS_MASS, OF_MASS, POINTS, Sink, by_mass_and_rate, mass_at
from sinkscope_replication.questions.variations import OTHERS, SOFTMAX

SECTION_7 = "Gu et al. 2025, section 7"
NO_TOKEN = Variation("no fixed token", {"data.bos": "none"})
BY_LAYER = "sink_mass/strongest/layer="

OTHER_HEADS = (
    "it compared heads with a sink to all others, whichever layers they stood in, so that layers were compared as "
    "well; now a head is compared with itself, on and off the sink, and with the other heads of its layer"
)

no_op = Question(
    name="no-op",
    asks="Does a head do nothing while it attends to the sink?",
    source=SECTION_7,
    variations=(SOFTMAX,),
    assertions=(
        above_ratio(
            1.25,
            log_quotient("softmax", "resting/controls", "resting/on_sink"),
            "less on the sink",
            "in heads with the sink, queries with more than 0.8 of their weight on it get less written than those with "
            "less than 0.2: the ratio is 1.25 times smaller than in the heads of the same layer without it, at the "
            "same queries",
            SECTION_7,
        ),
        below(
            0.5,
            level("resting/on_sink", "softmax"),
            "less than half",
            "in heads with the sink, queries with more than 0.8 of their weight on it get less than half as much "
            "written as those with less than 0.2",
            SECTION_7,
        ),
    ),
    shown=("resting/heads", "resting/on_sink", "resting/controls", "sink_mass", "sink_0", "loss"),
    withdrawn=(
        Withdrawn(
            "of all heads",
            "queries with more than 0.8 of their weight on the sink get less written by their head than those with "
            "less than 0.2, 1.25 times less than in the other heads of its layer, and less than half as much",
            "it was read of every head with 50 such queries, which are 14 to 16 of 16: one or two of them have the "
            "sink, the others met it right behind the first token, and the controls had it too",
        ),
        Withdrawn(
            "they write little",
            "heads without a sink write more than 1.4 times what those with one write (mean norm of a head's output)",
            OTHER_HEADS,
        ),
        Withdrawn(
            "they matter less",
            "the loss rises less when sink heads are zeroed than when as many other heads are",
            OTHER_HEADS,
        ),
        Withdrawn("they do nothing", "the loss rises by less than 0.1 nats when sink heads are zeroed", OTHER_HEADS),
    ),
)

inside = Question(
    name="sink-head",
    asks="What makes a sink inside a head, and where in the model does it stand?",
    source="Gu et al. 2025, sections 3 and 7, Figure 2",
    variations=(SOFTMAX, NO_TOKEN),
    note="These models are trained with a fixed BOS; without one a model of this size has a mass of 0.2 %. That "
    "massive activations are in few channels was asked of all hidden states first, whose kurtosis one long token "
    "raises; the comparison over channels came when the runs had been seen.",
    assertions=(
        above(
            HAS_MASS,
            level("sink_mass", "softmax"),
            "in a small model",
            f"a model of 1.3 million parameters has a sink mass of more than {HAS_MASS:g} % at position 0",
            "Gu et al. 2025, Table 8: sinks in models from 14 million parameters on",
            FRESH,
        ),
        above(
            0.3,
            level("top_head/cosine_gap", "softmax"),
            "the angle",
            "in the head with the strongest sink the mean cosine of queries with the sink's key is above that with the "
            "other keys, by more than 0.3",
            "Gu et al. 2025, section 3, Figure 2",
            FRESH,
        ),
        below(
            1.25,
            level("top_head/key_ratio", "softmax"),
            "not the length",
            "in that head the sink's key is less than 1.25 times as long as the others",
            "Gu et al. 2025, section 3, Figure 2: small or comparable",
            FRESH,
        ),
        above(
            1.0,
            level("key_angle", "softmax"),
            "a key apart",
            "in that head the angle between the sink's key and the eight strongest directions of all other keys is "
            "larger than that of a random direction (the effect is their quotient)",
            "Gu et al. 2025, section 3: the first token's key lies on a different manifold; the statistic is ours",
            FRESH,
        ),
        above_ratio(
            1.25,
            log_quotient("softmax", "key_angle", "key_angle/others"),
            "apart as no other key",
            "in that head this angle is more than 1.25 times that of a key at another position, each against the "
            "strongest directions of the keys at all positions but its own (mean over keys)",
            "Gu et al. 2025, section 3: the first token's key lies on a different manifold; the statistic is ours",
            FRESH,
        ),
        below(
            0.5,
            level("top_head/value_ratio", "softmax"),
            "a small value",
            "in that head the sink's value is less than half as long as the others",
            "Gu et al. 2025, section 3, Figure 2",
            FRESH,
        ),
        above(
            2.0,
            level("norm_ratio", "softmax"),
            "massive activation",
            "the first token is more than twice as long as the others at some depth",
            "Gu et al. 2025, section 3; Sun et al. 2024",
        ),
        above(
            10.0,
            level("kurtosis", "softmax"),
            "in few channels",
            "at the depth where it is largest the kurtosis of hidden states is above 10, where that of a Gaussian is 3",
            "Gu et al. 2025, section 3; Sun et al. 2024: spikes in a few channels",
        ),
        above_ratio(
            1.25,
            log_ratio("kurtosis_neurons", "softmax", "no fixed token"),
            "in fewer channels",
            "the energy of hidden states stands in fewer channels than in a model trained without a fixed BOS, which "
            "has no massive activation: at the depth where it is largest the kurtosis over channels is more than 1.25 "
            "times as large",
            "Gu et al. 2025, section 3; Sun et al. 2024: spikes in a few channels",
        ),
        above(
            0.33,
            ahead_of("softmax", tuple(f"{BY_LAYER}{layer}" for layer in (1, 2, 3)), f"{BY_LAYER}0"),
            "less in the first block",
            "the first block has less sink mass at the strongest position than the three behind it have on average, by "
            "more than 0.33 points",
            "Gu et al. 2025, section 3: fewer sinks in early blocks",
            FRESH,
        ),
    ),
    shown=(
        "sink_mass",
        "top_head/alpha",
        "top_head/cosine_gap",
        "top_head/key_ratio",
        "top_head/value_ratio",
        "key_angle",
        "key_angle/others",
    ),
    not_at=dict.fromkeys(("mini", "paper"), "its layers are those of nano"),
)

BARE, WITH_BOS = "learned positions", "learned positions, fixed BOS"
TABLE_7 = "Gu et al. 2025, Table 7, GPT2-XL on one repeated token"
REPLACED = dict(zip(OTHERS, (0.20, 2.36, 7.73, 10.63, 10.97), strict=True))
SWAPPED = dict(zip(OTHERS, ((1.44, 57.63), (3.73, 54.48), (6.78, 52.81), (8.95, 51.70), (9.42, 51.13)), strict=True))
PUBLISHED_7 = {
    "sink_0/repeated": 62.28,
    **{f"sink_0/replaced={other}": sink for other, sink in REPLACED.items()},
    **{f"sink_{other}/replaced={other}": 0.0 for other in REPLACED},
    **{f"sink_0/swapped={other}": first for other, (first, _) in SWAPPED.items()},
    **{f"sink_{other}/swapped={other}": sink for other, (_, sink) in SWAPPED.items()},
}


def _of_a_sink(label: str, sink: str, points: float, larger: str, smaller: str) -> SeedWise:
    """The difference of two metrics in seeds that have a sink on the repeated token."""
    effect = metric_gap(label, larger, smaller)
    return where(label, f"{sink}/repeated", points, effect, "no sink on the repeated token to begin with")


def _behind_a_bos() -> tuple[Assertion, ...]:
    """On one repeated token, which stands without the BOS: the sink, and what becomes of it as embeddings move."""
    points, label = POINTS, WITH_BOS

    def moved(sink: Sink, larger: str, smaller: str) -> SeedWise:
        return _of_a_sink(label, sink(), points * OF_MASS if sink is mass_at else points, larger, smaller)

    def fallen(sink: Sink) -> SeedEffect:
        kept = [moved(sink, sink(0, "/repeated"), sink(0, f"/replaced={other}")) for other in OTHERS]
        return replace(kept[0], effect=lambda runs: least(one(runs) for one in kept))

    return (
        *by_mass_and_rate(
            above,
            points,
            lambda sink: level(sink(0, "/repeated"), label),
            "with a BOS: on one repeated token",
            f"with '{label}' the sink {{measure}} at the first of one repeated token is more than {{points}}",
            f"{TABLE_7}: a rate of 62.28 %",
        ),
        *by_mass_and_rate(
            above,
            points,
            fallen,
            "with a BOS: replaced",
            f"with '{label}' that {{measure}} falls by more than {{points}} whichever embedding the first position "
            "gets: that of the 5th, 10th, 15th, 20th or 25th",
            f"{TABLE_7}: rates of 62.28 and 0.20 %",
        ),
        *by_mass_and_rate(
            above,
            points,
            lambda sink: moved(sink, sink(4, "/swapped=4"), sink(0, "/swapped=4")),
            "with a BOS: swapped",
            f"with '{label}' the fifth position has the larger {{measure}}, by more than {{points}}, when it exchanges "
            "embeddings with the first",
            f"{TABLE_7}: rates of 57.63 and 1.44 %",
        ),
    )


moved_positions = Question(
    name="moved-positions",
    asks="With learned positions, is it the first position's embedding that makes the sink?",
    source=TABLE_7,
    shared={"model.position": "learned"},
    variations=(
        Variation(BARE, {"data.bos": "none"}, PUBLISHED_7 | {"sink_0": 33.13}),
        Variation(WITH_BOS, {"data.bos": "fixed"}),
    ),
    assertions=(
        above(
            0.33,
            level("sink_mass", BARE),
            "a sink without a BOS",
            "without a fixed BOS the sink mass at the first position is more than 0.33 %",
            "Gu et al. 2025, Table 3: a rate of 33.13 %",
            FRESH,
        ),
        above(
            0.33,
            _of_a_sink(BARE, "sink_mass", 0.33, "sink_mass/repeated", "sink_mass/replaced=4"),
            "replaced, by mass",
            "on one repeated token the sink mass of the first position falls by more than 0.33 points when it gets the "
            "embedding of the fifth",
            f"{TABLE_7}: rates of 62.28 and 0.20 %",
            FRESH,
        ),
        above(
            0.33,
            _of_a_sink(BARE, "sink_mass", 0.33, "sink_mass_4/swapped=4", "sink_mass/swapped=4"),
            "swapped, by mass",
            "when the first and the fifth position exchange embeddings, the fifth has more sink mass, by more than "
            "0.33 points",
            f"{TABLE_7}: rates of 57.63 and 1.44 %",
            FRESH,
        ),
        above(
            0.33,
            level("sink_mass/repeated", BARE),
            "on one repeated token, by mass",
            "on one repeated token the sink mass at the first position is more than 0.33 %",
            f"{TABLE_7}: a rate of 62.28 %",
            FRESH,
        ),
        above(
            1.0,
            level("sink_0/repeated", BARE),
            "on one repeated token",
            "on one repeated token more than 1 % of heads have their sink at the first position",
            f"{TABLE_7}: 62.28 %",
        ),
        above(
            1.0,
            _of_a_sink(BARE, "sink_0", 1.0, "sink_0/repeated", "sink_0/replaced=4"),
            "replaced",
            "the sink rate of the first position falls by more than 1 point when it gets the embedding of the fifth",
            f"{TABLE_7}: 62.28 and 0.20 %",
        ),
        above(
            1.0,
            _of_a_sink(BARE, "sink_0", 1.0, "sink_4/swapped=4", "sink_0/swapped=4"),
            "swapped",
            "when the first and the fifth position exchange embeddings, the fifth has the higher sink rate, by more "
            "than 1 point",
            f"{TABLE_7}: 57.63 and 1.44 %",
        ),
        *_behind_a_bos(),
    ),
    note="Where a seed has no sink on the repeated token, by the same margin, what replacing or swapping does to it is "
    "refused: that a sink which is not there does not move is no answer. This was added when the first three runs had "
    "shown such seeds. Models that learned with a fixed BOS have that sink too, though the repeated token stands "
    "without it; they were asked when that had been seen.",
)

QUESTIONS = (no_op, inside, moved_positions)
