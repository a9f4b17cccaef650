"""Questions about how a softmax normalizes, what its rows sum to, and gates after it.

Source: Gu et al. 2025, Table 14 and section 7; Miller 2023; Zuhri et al. 2025; Bondarenko et al. 2023; Kaul et al.
2024; Yin et al. 2024; Qiu et al. 2025.
"""

from __future__ import annotations

import math
from typing import Any

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Question,
    Variation,
    above,
    above_ratio,
    gap,
    log_ratio,
    more_models,
    most_models,
    rising,
)

STUDY = FromRecipe(job="replication")
BASE, NEW_BASE, NEW, FEW = range(13), range(13, 25), range(13, 19), (3, 4, 5)
SINK = Has("sink_0", 3.0)
FAILS, TRAINS = Has("loss", 4.1, diverged=True), Has("loss", at_most=4.1, diverged=False)  # softmax ends at 3.1 nats
OURS = "our question: the source reports outliers or losses, and no sink rates"
KAUL = "Kaul et al. 2024, GPT-2 of 130M, from third parties' notes"
ZUHRI = "Zuhri et al. 2025, 340M, from their README; the 63.41 from memory"
BONDARENKO = "Bondarenko et al. 2023, BERT, from third parties' notes"
BONDARENKO_OPT = "Bondarenko et al. 2023, OPT-125M, from third parties' notes"
YIN = "Yin et al. 2024, from third parties' notes"
QIU = "Qiu et al. 2025, from memory"
TABLE_14, SECTION_7 = "Gu et al. 2025, Table 14", "Gu et al. 2025, section 7"


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


def fewer_with(label: str, source: str, what: str = "") -> Any:
    """The claim that fewer models have a sink with an operation than with softmax."""
    return more_models(
        "softmax", label, SINK, "fewer", f"fewer models have a sink with {what or label} than with softmax", source
    )


def outliers(label: str, than: str, source: str) -> Any:
    """The claim that an operation has fewer outliers than another."""
    return above_ratio(
        1.25,
        log_ratio("kurtosis", than, label),
        f"fewer outliers than {than}",
        f"the kurtosis of hidden states is more than 1.25 times as large with {than} as with {label}",
        source,
    )


off_by_one = Question(
    name="off-by-one",
    asks="Does softmax-off-by-one remove the sink?",
    source="Miller 2023; Kaul et al. 2024",
    base=STUDY,
    seeds=6,
    variations=(
        operation("softmax", seeds=BASE, first_share=33.3, kurtosis=140.0),
        operation("softmax_off_by_one", first_share=2.2, kurtosis=244.7),
    ),
    assertions=(fewer_with("softmax_off_by_one", "Kaul et al. 2024"),),
    note="With a fixed BOS the first token is a constant key itself; without one asks 'off-by-one-without-bos'.",
)

off_by_one_without_bos = Question(
    name="off-by-one-without-bos",
    asks="Where nothing else is constant, is the key of zeros that softmax-off-by-one adds the sink?",
    source="Miller 2023; Gu et al. 2025, Table 4",
    base=STUDY,
    seeds=range(3, 10),
    shared={"data.bos": "none"},
    variations=(
        operation("softmax", seeds=range(6)),
        operation("softmax_off_by_one"),
        operation("k_bias", slot=73.34),
    ),
    assertions=(
        most_models(
            "softmax_off_by_one", Has("slot", 3.0), "a sink", "most models have their sink on it", "our prediction"
        ),
        above_ratio(
            1.0,
            log_ratio("slot_mass", "k_bias", "softmax_off_by_one"),
            "a learned key takes more",
            "a learned key with a zero value has more sink mass than a key of zeros",
            "our prediction",
        ),
    ),
)

off_by_one_and_orthoadam = Question(
    name="off-by-one-and-orthoadam",
    asks="Do softmax-off-by-one and OrthoAdam together remove sink and outliers?",
    source=KAUL,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, first_share=65.0, kurtosis=1657.0),
        operation("softmax_off_by_one"),  # the source's numbers for one change alone are of another baseline
        Variation("OrthoAdam", {"optimizer.name": "orthoadam"}),
        Variation(
            "both",
            {"attention": "softmax_off_by_one", "optimizer.name": "orthoadam"},
            {"first_share": 3.3, "kurtosis": 3.1},
        ),
    ),
    assertions=(fewer_with("both", KAUL), outliers("both", "softmax", KAUL)),
)

softpick = Question(
    name="softpick",
    asks="Does softpick remove sink and outliers?",
    source=ZUHRI,
    base=STUDY,
    seeds=6,
    variations=(
        operation("softmax", seeds=BASE, sink_0=63.41, kurtosis=33510.0),
        operation("softpick", sink_0=0.0, kurtosis=340.0),
    ),
    assertions=(fewer_with("softpick", ZUHRI), outliers("softpick", "softmax", ZUHRI)),
)

clipped = Question(
    name="clipped",
    asks="Does a softmax that can give exact zeros need a sink?",
    source=BONDARENKO,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, infinity_norm=735.0, kurtosis=3076.0),
        operation("clipped_softmax", "gamma -0.025", {"gamma": -0.025, "zeta": 1.0}, infinity_norm=21.5, kurtosis=80.0),
        operation("clipped_softmax", "gamma -0.1, zeta 1.1", {"gamma": -0.1, "zeta": 1.1}),
    ),
    assertions=(fewer_with("gamma -0.025", OURS, "a clipped softmax"), outliers("gamma -0.025", "softmax", BONDARENKO)),
)

stable_mask = Question(
    name="stable-mask",
    asks="Does giving mass to the future, as StableMask does, take the place of the sink?",
    source=YIN,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, loss=math.log(22.5)),
        operation("stable_mask", loss=math.log(21.1)),
    ),
    assertions=(
        fewer_with("stable_mask", OURS),
        above(
            0.0,
            gap("loss", "softmax", "stable_mask"),
            "better",
            "the validation loss is lower with StableMask",
            YIN,
            symmetric=True,
        ),
    ),
)

gated = Question(
    name="gated",
    asks="Does a head that can close a gate need a sink?",
    source=BONDARENKO_OPT,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, infinity_norm=340.0, kurtosis=1778.0),
        operation("gated_head", infinity_norm=8.7, kurtosis=18.9),
    ),
    assertions=(fewer_with("gated_head", OURS), outliers("gated_head", "softmax", BONDARENKO_OPT)),
)

gated_truncated = Question(
    name="gated-truncated",
    asks="Does a gate that reads twelve channels alone need no sink either?",
    source="Dial 2025",
    base=STUDY,
    seeds=FEW,
    variations=(
        operation("softmax", seeds=BASE),
        operation("gated_head", "reads 12", {"reads": 12, "openness": 0.5, "initial_std": 0.0}),
        operation("softmax_scaled", "alpha 0.5", {"alpha": 0.5}),
    ),
    assertions=(fewer_with("reads 12", OURS, "a gate that reads 12 channels"),),
    note="The gate starts half open, which halves what a row sums to; 'alpha 0.5' is such a half that stays.",
)

gated_by_channel = Question(
    name="gated-by-channel",
    asks="And where every channel has a gate of its own?",
    source=QIU,
    base=STUDY,
    seeds=3,
    variations=(operation("softmax", seeds=BASE), operation("gated_elementwise")),
    assertions=(fewer_with("gated_elementwise", QIU),),
)

exclusive = Question(
    name="exclusive",
    asks="Where an output keeps nothing of its token's own value, does the token itself take the place of the sink?",
    source="Zhai 2026",
    base=STUDY,
    seeds=FEW,
    variations=(operation("softmax", seeds=BASE), operation("exclusive")),
    assertions=(fewer_with("exclusive", OURS),),
)

SCALED = {2.0: (29.10, 3.72), 0.2: (9.41, 3.72), 0.1: (3.59, 3.76), 0.05: (4.53, 3.78)}

scaled = Question(
    name="scaled",
    asks="Does the sink weaken where softmax's rows sum to less than one?",
    source=TABLE_14,
    base=STUDY,
    seeds=NEW,
    variations=(
        operation("softmax", seeds=NEW_BASE, sink_0=18.18, loss=3.73),
        *(
            operation("softmax_scaled", f"alpha {alpha:g}", {"alpha": alpha}, sink_0=sink, loss=loss)
            for alpha, (sink, loss) in SCALED.items()
        ),
    ),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass", ("alpha 0.1", "alpha 0.2", "softmax", "alpha 2"), log=True),
            "monotone",
            "the sink mass rises more than 1.25 times with the sum of a row (.1, .2, 1, 2)",
            TABLE_14,
        ),
    ),
)

POWERS = {"1/4": 0.25, "1/3": 1 / 3, "1/2": 0.5, "2": 2.0, "3": 3.0, "4": 4.0}
SIGMOIDS = ("sigmoid, p = 2", "sigmoid, p = 3", "sigmoid, p = 4")

powers = Question(
    name="powers",
    asks="What does the p-norm of a row's weights do to training and to massive activations?",
    source=SECTION_7,
    base=STUDY,
    seeds=FEW,
    shown=("loss", "norm_ratio", "sink_mass", "sink_0"),
    variations=(
        operation("softmax", seeds=BASE, loss=3.73),
        *(operation("softmax_power", f"p = {name}", {"p": power}) for name, power in POWERS.items()),
        *(operation("sigmoid_power", f"sigmoid, p = {p:g}", {"p": p}) for p in (2.0, 3.0, 4.0)),
    ),
    assertions=(
        most_models(
            ("p = 2", "p = 3", "p = 4"),
            FAILS,
            "p > 1 fails",
            "most models of p-normalized softmax with p > 1 diverge or end more than a nat above softmax",
            SECTION_7,
        ),
        most_models(
            ("p = 1/2", "p = 1/3", "p = 1/4"), TRAINS, "p < 1 trains", "most models with p < 1 train", SECTION_7
        ),
        most_models(SIGMOIDS, TRAINS, "sigmoid trains", "most models of p-normalized sigmoid train", SECTION_7),
    ),
)

QUESTIONS = (
    *(off_by_one, off_by_one_without_bos, off_by_one_and_orthoadam, softpick, clipped, stable_mask),
    *(gated, gated_by_channel, gated_truncated, exclusive, scaled, powers),
)
