"""Questions about what the weights of a row sum to: another number, or one in another norm.

Source: Gu et al. 2025, Table 14 and section 7.
"""

from __future__ import annotations

from sinkscope.experiments import Question, Withdrawn, above
from sinkscope.experiments.effects import level, rising
from sinkscope_replication.assertions import FRESH, converges, does_not_converge, less_massive, less_sink
from sinkscope_replication.questions.variations import SOFTMAX, operation

TABLE_14 = "Gu et al. 2025, Table 14"
SCALED = {2.0: (29.10, 3.72), 0.2: (9.41, 3.72), 0.1: (3.59, 3.76), 0.05: (4.53, 3.78)}


scaled = Question(
    name="scaled",
    asks="Does the sink weaken where softmax's rows sum to less than one?",
    # What alpha is equal to under SGD and AdamW are identities, not findings: `sinkscope theory` checks them.
    source=TABLE_14,
    variations=(
        SOFTMAX,
        *(
            operation("softmax_scaled", f"alpha {alpha:g}", {"alpha": alpha}, sink_0=sink, loss=loss)
            for alpha, (sink, loss) in SCALED.items()
        ),
    ),
    assertions=(
        above(
            0.33,
            rising("sink_mass", ("alpha 0.1", "alpha 0.2", "softmax", "alpha 2")),
            "monotone, by mass",
            "the sink mass rises with alpha (0.1, 0.2, 1, 2) by more than 0.33 points along the fitted line",
            f"{TABLE_14}: rates of 3.59, 9.41, 18.18, 29.10 % (and 4.53 % at 0.05)",
            FRESH,
        ),
        above(
            1.0,
            rising("sink_0", ("alpha 0.1", "alpha 0.2", "softmax", "alpha 2")),
            "monotone",
            "the sink rate rises with alpha (0.1, 0.2, 1, 2) by more than 1 point along the fitted line",
            f"{TABLE_14}: 3.59, 9.41, 18.18, 29.10 % (and 4.53 % at 0.05)",
        ),
        *less_sink("softmax", "alpha 2", f"{TABLE_14}: 29.10 and 18.18 %", margin=1.0),
        *less_sink("alpha 0.2", "softmax", f"{TABLE_14}: 18.18 and 9.41 %", margin=1.0),
        *less_sink("alpha 0.1", "softmax", f"{TABLE_14}: 18.18 and 3.59 %"),
    ),
)

SECTION_7 = "Gu et al. 2025, section 7"
SIGMOIDS = ("sigmoid, p = 2", "sigmoid, p = 3", "sigmoid, p = 4")
POWERS = {"1/4": 0.25, "1/3": 1 / 3, "1/2": 0.5, "2": 2.0, "3": 3.0, "4": 4.0}

powers = Question(
    name="powers",
    asks="What does the p-norm of a row's weights do to training and to massive activations?",
    source=SECTION_7,
    shown=("loss", "norm_ratio", "sink_mass", "sink_0"),
    variations=(
        operation("softmax", loss=3.73),
        *(operation("softmax_power", f"p = {name}", {"p": power}) for name, power in POWERS.items()),
        *(operation("sigmoid_power", f"sigmoid, p = {p:g}", {"p": p}) for p in (2.0, 3.0, 4.0)),
    ),
    assertions=(
        *(does_not_converge(f"p = {name}", "softmax", f"{SECTION_7}: p = 2, 3, 4 diverge") for name in ("2", "3", "4")),
        *(converges(f"p = {name}", "softmax", SECTION_7) for name in ("1/2", "1/3", "1/4")),
        *(
            less_massive(f"p = {name}", "softmax", f"{SECTION_7}: weaker massive activations")[0]
            for name in ("1/2", "1/3", "1/4")
        ),
        *(converges(label, "softmax", f"{SECTION_7}: p > 1 trains") for label in SIGMOIDS),
        *(
            above(
                2.0,
                level("norm_ratio", label),
                f"{label}: massive",
                f"with '{label}' the first token is more than twice as long as the others at some depth",
                f"{SECTION_7}: still massive activations",
            )
            for label in SIGMOIDS
        ),
    ),
    withdrawn=(
        Withdrawn(
            "less massive than softmax at equal loss",
            "the first token's norm ratio is more than 1.25 times as large with 'softmax' as with p = 1/2, 1/3 or 1/4, "
            "at equal validation loss",
            "at the losses that these end with softmax's sink has not formed: no seed could answer",
        ),
        Withdrawn(
            "sigmoid, p > 1: massive",
            "under each sigmoid with p > 1 the first token's norm ratio is more than half of softmax's",
            "the least of three noisy numbers, and half of softmax's is no massive activation: each is asked by itself",
        ),
        *(
            Withdrawn(
                f"p = {name}, 1 or 0",
                f"'p = {name}' {does}, told by 1 where it fails and by 0 where it does not",
                "three runs that agree say no more than that fewer than 63 % of all runs do otherwise; how far the "
                "loss ends above is asked instead",
            )
            for name, does in (("2", "does not converge"), ("1/2", "converges"))
        ),
    ),
)

QUESTIONS = (scaled, powers)
