"""Questions about similarity and normalizer (Gu et al. 2025, Tables 6 and 15)."""

from __future__ import annotations

from sinkscope.experiments import Question, Variation, Withdrawn, above, below
from sinkscope.experiments.effects import MASS, gap, gap_at_equal_loss, level
from sinkscope_replication.assertions import (
    EQUAL_LOSS,
    FRESH,
    NO_COST,
    OF_MASS,
    POINTS,
    converges,
    does_not_converge,
    keeps_sink,
    less_massive,
    less_sink,
    no_cost,
    no_sink,
    not_massive,
)
from sinkscope_replication.questions.variations import SOFTMAX, operation, relative, times

TABLE_6 = "Gu et al. 2025, Table 6"
TABLE_15 = "Gu et al. 2025, Tables 6 and 15"

normalization = Question(
    name="normalisation",
    asks="Is it the softmax's normalization that makes the sink?",
    source=TABLE_6,
    variations=(
        SOFTMAX,
        operation("sigmoid", sink_0=0.44, loss=3.70),
        operation("sigmoid_normalized", sink_0=30.24, loss=3.74),
    ),
    assertions=(
        *less_sink("sigmoid", "softmax", f"{TABLE_6}: 18.18 and 0.44 %")[1::2],  # at equal loss, by mass and by rate
        *no_sink(("sigmoid",), f"{TABLE_6}: 0.44 %"),
        no_cost("sigmoid", "softmax", f"{TABLE_6}: 3.70 and 3.73"),
        *less_sink("sigmoid", "sigmoid_normalized", f"{TABLE_6}: 30.24 and 0.44 %"),
        *less_massive("sigmoid", "softmax", f"{TABLE_6}, and Figure 8: 1 to 1.8 and about 30"),
        below(
            2.0,
            level("norm_ratio", "sigmoid"),
            "as long as the others",
            "under sigmoid the first token is less than twice as long as the others, at every depth",
            f"{TABLE_6}, and Figure 8: 1 to 1.8",
        ),
        *keeps_sink("sigmoid_normalized", "softmax", f"{TABLE_6}: 30.24 %"),
        above(
            2.0,
            level("norm_ratio", "sigmoid_normalized"),
            "added back: massive",
            "with rows that sum to one again the first token is more than twice as long as the others at some depth",
            "Gu et al. 2025, Figure 8: about 20",
        ),
    ),
    withdrawn=(
        Withdrawn(
            "sigmoid: less than softmax at equal steps",
            "the sink mass at position 0 is lower with 'sigmoid' than with 'softmax' by more than 1 point, and the "
            "rate by more than 3, at equal steps",
            "sigmoid ends 0.42 nats behind, so that its sink was that of a younger model",
        ),
    ),
    note="At equal steps sigmoid ends 0.42 nats behind softmax here, so a lower sink may be that of a younger model: "
    "'sigmoid-at-equal-loss' trains it to softmax's loss. That sigmoid has no sink, not only a weaker one, and that it "
    "costs no loss, were asked when these runs had been seen. For the metric the weights of a row are divided by "
    "their sum, as in the paper; so read, one of the first three seeds of sigmoid has a rate of 7.6 %.",
)

sigmoid_longer = Question(
    name="sigmoid-at-equal-loss",
    asks="Has sigmoid attention no sink when it has come to softmax's loss?",
    source="Gu et al. 2025, Table 6 and appendix; Ramapuram et al. 2024",
    variations=(
        SOFTMAX,
        Variation("sigmoid, bias, twice", {"attention": "sigmoid_bias", "steps": times(2.0)}),
        Variation(
            "sigmoid, bias, twice, lr x 2.5",
            {"attention": "sigmoid_bias", "steps": times(2.0), "optimizer.lr": times(2.5)},
        ),
    ),
    assertions=tuple(
        assertion
        for label in ("sigmoid, bias, twice", "sigmoid, bias, twice, lr x 2.5")
        for assertion in (
            *no_sink((label,), f"{TABLE_6}: 0.44 %", beside="softmax", behind=NO_COST, name=f"{label}: "),
            above(
                POINTS * OF_MASS,
                gap_at_equal_loss("softmax", label, MASS),
                f"{label}: less mass at equal loss",
                f"the sink mass at position 0 is lower with '{label}' than with 'softmax' by more than 1 point, "
                f"{EQUAL_LOSS}",
                f"{TABLE_6}: rates of 18.18 and 0.44 %",
                FRESH,
            ),
            below(
                0.05,
                gap("loss", label, "softmax"),
                f"{label}: as good",
                f"the validation loss with '{label}' ends at most 0.05 nats above softmax's, which has half the steps",
                "our check that it has learned as much: at equal steps the source has losses of 3.70 and 3.73",
            ),
            not_massive(label, "Gu et al. 2025, Figure 8: 1 to 1.8", beside="softmax"),
        )
    ),
    base=relative,
    note="Whether it has no sink is asked where it has come to softmax's loss, at most 0.05 nats above, and refused "
    "elsewhere. The published rates are of sigmoid attention without a bias, at as many steps as softmax's.",
)

UNNORMALIZED = ("elu", "kernel_identity", "kernel_mlp", "kernel_mlp_normalized")

unnormalized = Question(
    name="unnormalised",
    asks="Does the sink stay away from every operation whose rows need not sum to one?",
    source=TABLE_15,
    variations=(
        SOFTMAX,
        operation("elu", sink_0=0.80, loss=3.69),
        operation("kernel_identity", sink_0=0.00, loss=3.99),
        operation("kernel_mlp", sink_0=0.74, loss=3.91),
        operation("kernel_mlp_normalized", sink_0=0.19, loss=3.85),
    ),
    assertions=(
        *(claim for name in UNNORMALIZED for claim in less_sink(name, "softmax", f"{TABLE_15}: 0.00 to 0.80 %")),
        *no_sink(UNNORMALIZED, f"{TABLE_15}: 0.00 to 0.80 %", beside="softmax"),
        *(
            not_massive(name, "Gu et al. 2025, section 7: no massive activations", beside="softmax")
            for name in UNNORMALIZED
        ),
    ),
    note="A model that has learned nothing has nearly uniform attention, and so no sink: where a loss ends more than 1 "
    "nat above softmax's, the answer is refused. This was added before the runs.",
)

normalized_kernel = Question(
    name="normalised-kernel",
    asks="Does linear attention have a sink where its rows sum to one?",
    source=TABLE_15,
    variations=(SOFTMAX, operation("kernel_elu_normalized", sink_0=53.65, loss=4.19)),
    assertions=(
        *keeps_sink("kernel_elu_normalized", "softmax", f"{TABLE_15}: 53.65 %"),
        above(
            0.0,
            gap("sink_mass", "kernel_elu_normalized", "softmax"),
            "stronger, by mass",
            "normalized linear attention has more sink mass than softmax, at equal steps",
            f"{TABLE_15}: rates of 53.65 and 18.18 %",
            FRESH,
        ),
        above(
            0.0,
            gap("sink_0", "kernel_elu_normalized", "softmax"),
            "stronger",
            "normalized linear attention has a higher sink rate than softmax, at equal steps",
            f"{TABLE_15}: 53.65 and 18.18 %",
        ),
        above(
            0.0,
            gap_at_equal_loss("kernel_elu_normalized", "softmax", MASS),
            "stronger at equal loss, by mass",
            "normalized linear attention has more sink mass than softmax at equal validation loss, the one that the "
            "slower of the two ends with",
            f"{TABLE_15}: rates of 53.65 and 18.18 %",
            FRESH,
        ),
        above(
            0.0,
            gap_at_equal_loss("kernel_elu_normalized", "softmax"),
            "stronger at equal loss",
            "normalized linear attention has a higher sink rate than softmax at equal validation loss, the one that "
            "the slower of the two ends with",
            f"{TABLE_15}: 53.65 and 18.18 %",
        ),
        above(
            0.1,
            gap("loss", "kernel_elu_normalized", "softmax"),
            "worse",
            "the validation loss of normalized linear attention is higher than softmax's, by more than 0.1 nats",
            f"{TABLE_15}: 4.19 and 3.73",
        ),
    ),
)

FAILING = ("elu_normalized", "kernel_elu", "kernel_identity_normalized")

failing = Question(
    name="failing",
    asks="Which similarities do not train with which normalizer?",
    source=TABLE_15,
    variations=(SOFTMAX, *map(operation, FAILING)),
    assertions=tuple(does_not_converge(name, "softmax", f"{TABLE_15}: fails to converge") for name in FAILING),
)

RATES = {"lr / 4": (times(1 / 4), 0.36, 4.08), "lr x 2.5": (times(2.5), 0.81, 3.68)}
DECAYS = {"decay 0": (0.0, 0.64, 3.77), "decay 0.5": (0.5, 0.18, 3.76), "decay 1": (1.0, 0.30, 4.06)}

sigmoid_settings = Question(
    name="sigmoid-settings",
    asks="Does sigmoid attention stay without a sink under other rates and decays?",
    source="Gu et al. 2025, Table 6 and appendix",
    shared={"attention": "sigmoid"},
    variations=(
        Variation("sigmoid", {}, {"sink_0": 0.44, "loss": 3.70}),
        *(
            Variation(label, {f"optimizer.{field}": value}, {"sink_0": sink, "loss": loss})
            for field, settings in (("lr", RATES), ("weight_decay", DECAYS))
            for label, (value, sink, loss) in settings.items()
        ),
    ),
    assertions=(
        *no_sink(("sigmoid", *RATES, *DECAYS), "Gu et al. 2025: 0.18 to 0.81 % in six settings"),
        *(converges(label, "sigmoid", "Gu et al. 2025: losses 3.68 to 4.08") for label in (*RATES, *DECAYS)),
    ),
    base=relative,
)

QUESTIONS = (normalization, sigmoid_longer, unnormalized, normalized_kernel, failing, sigmoid_settings)
