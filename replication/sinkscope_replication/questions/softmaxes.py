"""Questions about how a softmax normalizes, and about gates behind it.

Source: Miller 2023; Zuhri et al. 2025; Bondarenko et al. 2023; Kaul et al.
2024; Yin et al. 2024.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sinkscope.experiments import Assertion, Question, Variation, Withdrawn, above, below
from sinkscope.experiments.effects import gap, level
from sinkscope_replication.assertions import (
    FRESH,
    OURS,
    fewer_outliers,
    less_massive,
    less_sink,
    no_cost,
    no_sink,
)
from sinkscope_replication.questions.variations import operation

KAUL = "Kaul et al. 2024, GPT-2 of 130M, from third parties' notes"

TOKENS = 64  # of the texts on which attention is read
# Percentage points: mean over t of 1/t − 1/(t + 1), the first key's share of rows without and with the added one.
LESS_ANYWAY = 100 * (1 - 1 / (TOKENS + 1)) / TOKENS

off_by_one = Question(
    name="off-by-one",
    asks="Does softmax-off-by-one remove the sink?",
    source="Miller 2023; Kaul et al. 2024",
    variations=(
        operation("softmax", first_share=33.3, kurtosis=140.0),
        operation("softmax_off_by_one", first_share=2.2, kurtosis=244.7),
    ),
    assertions=(
        *less_sink("softmax_off_by_one", "softmax", "Kaul et al. 2024", margin=1.0),
        *no_sink(("softmax_off_by_one",), "our prediction, not that of Miller 2023, who gives no rates"),
        above(
            1.0,
            replace(gap("first_share", "softmax", "softmax_off_by_one"), constant=-LESS_ANYWAY),
            "less attention",
            "softmax-off-by-one gives the first token less attention on average, by more than 1 percentage point "
            "beyond the 1.54 that rows of equal logits lose (the effect is what is beyond)",
            f"{KAUL}: 33.3 and 2.2 %",
        ),
    ),
    note="That less than 1 % of heads keep a sink was ascribed to Miller 2023, who gives no rates: it is our "
    "prediction. With a fixed BOS the first token is a constant key itself, so the question without one is "
    "'off-by-one-without-bos'.",
    withdrawn=(
        Withdrawn(
            "softmax_off_by_one: lower than softmax at equal loss, at all",
            "the sink rate at position 0 is lower with 'softmax_off_by_one' than with 'softmax' by more than 0 points, "
            "at equal validation loss, the one that the slower of the two ends with",
            "its margin was 0, where 1 point is asked at equal steps; now it is the same",
        ),
    ),
)

off_by_one_without_bos = Question(
    name="off-by-one-without-bos",
    asks="Where nothing else is constant, is the one that softmax-off-by-one adds the sink, at no cost in loss?",
    source="Miller 2023; Gu et al. 2025, Table 4",
    shared={"data.bos": "none"},
    variations=(operation("softmax"), operation("softmax_off_by_one"), operation("k_bias", slot=73.34)),
    assertions=(
        above(
            1.0,
            level("slot_mass", "softmax_off_by_one"),
            "mass on the one",
            "the sink mass of what softmax-off-by-one adds, which is a key and a value of zeros, is more than 1 %",
            "our prediction: what a learned key with a zero value takes, a key of zeros takes too",
            FRESH,
        ),
        above(
            0.0,
            gap("slot_mass", "k_bias", "softmax_off_by_one"),
            "a learned key takes more",
            "a learned key with a zero value has more sink mass than a key of zeros",
            "our prediction",
            FRESH,
        ),
        no_cost("softmax_off_by_one", "softmax", "our prediction: as for the biases of Gu et al. 2025, Table 4"),
    ),
)

off_by_one_and_orthoadam = Question(
    name="off-by-one-and-orthoadam",
    asks="Do softmax-off-by-one and OrthoAdam together remove sink and outliers?",
    source=KAUL,
    variations=(
        operation("softmax", first_share=65.0, kurtosis=1657.0),
        operation("softmax_off_by_one"),  # the source's numbers for one change alone are of another baseline
        Variation("OrthoAdam", {"optimizer.name": "orthoadam"}),
        Variation(
            "both",
            {"attention": "softmax_off_by_one", "optimizer.name": "orthoadam"},
            {"first_share": 3.3, "kurtosis": 3.1},
        ),
    ),
    assertions=(
        *less_sink("both", "softmax", f"{KAUL}: first-token share 65 and 3.3 %", margin=1.0),
        fewer_outliers("both", "softmax", f"{KAUL}: 1657 and 3.1"),
        fewer_outliers("both", "softmax_off_by_one", f"{KAUL}: 244.7 alone (baseline 140.0), 3.1 together (1657)"),
        below(
            10.0,
            level("kurtosis", "both"),
            "nearly Gaussian",
            "with both the kurtosis is below 10 at every depth",
            f"{KAUL}: 3.1",
        ),
    ),
)

ZUHRI = "Zuhri et al. 2025, 340M, from their README; the 63.41 from memory"

softpick = Question(
    name="softpick",
    asks="Does softpick remove sink and outliers?",
    source=ZUHRI,
    variations=(
        operation("softmax", sink_0=63.41, kurtosis=33510.0),
        operation("softpick", sink_0=0.0, kurtosis=340.0),
    ),
    assertions=(
        *less_sink("softpick", "softmax", f"{ZUHRI}: 63.41 and 0 %"),
        *no_sink(("softpick",), f"{ZUHRI}: 0 %"),
        fewer_outliers("softpick", "softmax", f"{ZUHRI}: 33,510 and 340"),
    ),
)

BONDARENKO = "Bondarenko et al. 2023, BERT, from third parties' notes"


def _smaller_activations(label: str, what: str, source: str) -> Assertion:
    return above(
        0.0,
        gap("infinity_norm", "softmax", label),
        "smaller activations",
        f"the largest activation, averaged over texts, is smaller with {what}",
        source,
    )


clipped = Question(
    name="clipped",
    asks="Does a softmax that can give exact zeros need a sink?",
    source=BONDARENKO,
    variations=(
        operation("softmax", infinity_norm=735.0, kurtosis=3076.0),
        operation("clipped_softmax", "gamma -0.025", {"gamma": -0.025, "zeta": 1.0}, infinity_norm=21.5, kurtosis=80.0),
        operation("clipped_softmax", "gamma -0.1, zeta 1.1", {"gamma": -0.1, "zeta": 1.1}),
    ),
    assertions=(
        *less_sink("gamma -0.025", "softmax", OURS, margin=1.0),
        fewer_outliers("gamma -0.025", "softmax", f"{BONDARENKO}: 3076 and 80"),
        _smaller_activations("gamma -0.025", "a softmax that is clipped", f"{BONDARENKO}: 735 and 21.5"),
    ),
)

YIN = "Yin et al. 2024, from third parties' notes"

stable_mask = Question(
    name="stable-mask",
    asks="Does giving mass to the future, as StableMask does, take the place of the sink?",
    source=YIN,
    variations=(operation("softmax", loss=math.log(22.5)), operation("stable_mask", loss=math.log(21.1))),
    assertions=(
        *less_sink("stable_mask", "softmax", OURS, margin=1.0),
        above(
            0.0,
            gap("loss", "softmax", "stable_mask"),
            "better",
            "the validation loss is lower with StableMask",
            f"{YIN}: perplexity 22.5 and 21.1 in the ablation",
        ),
    ),
)

BONDARENKO_OPT = "Bondarenko et al. 2023, OPT-125M, from third parties' notes"
QIU = "Qiu et al. 2025, from memory"

gated = Question(
    name="gated",
    asks="Does a head that can close a gate need a sink?",
    source=BONDARENKO_OPT,
    variations=(
        operation("softmax", infinity_norm=340.0, kurtosis=1778.0),
        operation("gated_head", infinity_norm=8.7, kurtosis=18.9),
    ),
    assertions=(
        *less_sink("gated_head", "softmax", OURS, margin=1.0),
        fewer_outliers("gated_head", "softmax", f"{BONDARENKO_OPT}: 1778 and 18.9"),
        _smaller_activations("gated_head", "a gate", f"{BONDARENKO_OPT}: 340 and 8.7"),
    ),
)

DIAL = "Dial 2025"

gated_truncated = Question(
    name="gated-truncated",
    asks="Does a gate that reads twelve channels alone need no sink either?",
    source=DIAL,
    variations=(
        operation("softmax"),
        operation("gated_head", "reads 12", {"reads": 12, "openness": 0.5, "initial_std": 0.0}),
        operation("softmax_scaled", "alpha 0.5", {"alpha": 0.5}),
    ),
    assertions=(
        *less_sink("reads 12", "softmax", OURS, margin=1.0),
        *no_sink(("reads 12",), OURS, beside="softmax"),
        *less_sink("reads 12", "alpha 0.5", OURS, margin=1.0),
        no_cost("reads 12", "softmax", "our prediction: the gate costs nothing"),
    ),
    note="The gate starts half open, which halves what a row sums to: 'alpha 0.5' is such a half that "
    "stays. Whether nothing is left, and the comparison with it, were added before the runs.",
)

exclusive = Question(
    name="exclusive",
    asks="Where an output keeps nothing of its token's own value, can the token itself take the place of the sink?",
    source="Zhai 2026",
    variations=(operation("softmax"), operation("exclusive")),
    assertions=(
        *less_sink("exclusive", "softmax", OURS, margin=1.0),
        above(
            1.0,
            gap("self_mass", "exclusive", "softmax"),
            "more on the token itself",
            "with exclusive self-attention tokens have more sink mass on themselves than with softmax, by more than 1 "
            "point",
            "our prediction, after Zhai 2026: a token's own key adds nothing to the output",
            FRESH,
        ),
        above(
            0.0,
            gap("loss", "softmax", "exclusive"),
            "better",
            "the validation loss is lower with exclusive self-attention",
            "Zhai 2026: at 0.7B to 2.7B, more so in longer contexts",
        ),
    ),
    note="The control's runs were made before attention on the token itself was kept: what is asked of it waits for "
    "new ones.",
    withdrawn=(
        Withdrawn(
            "the token takes its place",
            "with exclusive self-attention tokens have more sink mass on themselves than on the first",
            "softmax does so too, where it has a sink: 11 to 13 % on the token itself and 3 to 5 % on the first in "
            "three models trained with 1/20 of the text; softmax is what it has to be compared with",
        ),
    ),
)

gated_by_channel = Question(
    name="gated-by-channel",
    asks="And where every channel has a gate of its own?",
    source=QIU,
    variations=(operation("softmax"), operation("gated_elementwise")),
    assertions=(
        *less_sink("gated_elementwise", "softmax", QIU),
        *less_massive("gated_elementwise", "softmax", QIU),
    ),
)

SOFTMAXES = (off_by_one, off_by_one_and_orthoadam, softpick, clipped, stable_mask)
GATES = (gated, gated_by_channel, gated_truncated)
QUESTIONS = (*SOFTMAXES, *GATES, exclusive, off_by_one_without_bos)
