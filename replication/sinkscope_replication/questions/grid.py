"""Questions about similarity and normalizer (Gu et al. 2025, Tables 6 and 15)."""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Question,
    Variation,
    above,
    above_ratio,
    below,
    gap,
    log_ratio,
    more_models,
    most_models,
    times,
)

STUDY = FromRecipe(job="replication")
BASE, NEW_BASE, NEW = range(13), range(13, 25), range(13, 19)
SINK, MASSIVE = Has("sink_0", 3.0), Has("norm_ratio", 4.0)
FAILS, TRAINS = Has("loss", 4.1, diverged=True), Has("loss", at_most=4.1, diverged=False)  # softmax ends at 3.1 nats
TABLE_6, TABLE_15 = "Gu et al. 2025, Table 6", "Gu et al. 2025, Tables 6 and 15"
FIGURE_8 = "Gu et al. 2025, Figure 8"


def operation(name: str, seeds: Any = None, **published: float) -> Variation:
    """An operation of the catalog."""
    return Variation(name, {"attention": name}, published, seeds)


SOFTMAX = operation("softmax", BASE, sink_0=18.18, loss=3.73)

normalization = Question(
    name="normalisation",
    asks="Is it the softmax's normalization that makes the sink?",
    source=TABLE_6,
    base=STUDY,
    seeds=6,
    variations=(
        SOFTMAX,
        operation("sigmoid", sink_0=0.44, loss=3.70),
        operation("sigmoid_normalized", sink_0=30.24, loss=3.74),
    ),
    assertions=(
        more_models("softmax", "sigmoid", SINK, "fewer", "fewer models have a sink with sigmoid than softmax", TABLE_6),
        more_models(
            "sigmoid_normalized",
            "sigmoid",
            SINK,
            "added back",
            "more models have a sink where sigmoid's rows are normalized than where they are not",
            TABLE_6,
        ),
        more_models(
            "softmax",
            "sigmoid",
            MASSIVE,
            "fewer are massive",
            "fewer models have a massive activation with sigmoid than with softmax",
            FIGURE_8,
        ),
        more_models(
            "sigmoid_normalized",
            "sigmoid",
            MASSIVE,
            "added back: massive",
            "more models have a massive activation where sigmoid's rows are normalized than where they are not",
            FIGURE_8,
        ),
        below(
            0.05,
            gap("loss", "sigmoid", "softmax"),
            "no cost",
            "the validation loss with sigmoid ends less than .05 nats above softmax's",
            TABLE_6,
            symmetric=True,
        ),
    ),
    note="For the metric the weights of a row are divided by their sum, as in the paper.",
)

TWICE = {"attention": "sigmoid_bias", "steps": times(2.0)}

sigmoid_longer = Question(
    name="sigmoid-at-equal-loss",
    asks="Do fewer sigmoid models have a sink when they have come to softmax's loss?",
    source="Gu et al. 2025, Table 6 and appendix; Ramapuram et al. 2024",
    base=STUDY,
    seeds=(3, 4, 5),
    variations=(
        SOFTMAX,
        Variation("sigmoid, bias, twice", TWICE),
        Variation("sigmoid, bias, twice, lr x 2.5", {**TWICE, "optimizer.lr": times(2.5)}),
    ),
    assertions=(
        more_models(
            "softmax",
            ("sigmoid, bias, twice", "sigmoid, bias, twice, lr x 2.5"),
            SINK,
            "fewer",
            "fewer models have a sink with sigmoid after twice the steps than with softmax",
            TABLE_6,
        ),
    ),
    note="The published rates are of sigmoid attention without a bias, at as many steps as softmax's.",
)

UNNORMALIZED = ("elu", "kernel_identity", "kernel_mlp", "kernel_mlp_normalized")

unnormalized = Question(
    name="unnormalised",
    asks="Does the sink stay away from operations whose rows need not sum to one?",
    source=TABLE_15,
    base=STUDY,
    seeds=(3, 4, 5),
    variations=(
        SOFTMAX,
        operation("elu", sink_0=0.80, loss=3.69),
        operation("kernel_identity", sink_0=0.00, loss=3.99),
        operation("kernel_mlp", sink_0=0.74, loss=3.91),
        operation("kernel_mlp_normalized", sink_0=0.19, loss=3.85),
    ),
    assertions=(
        more_models(
            "softmax",
            UNNORMALIZED,
            SINK,
            "fewer",
            "fewer models have a sink with ELU, identity and MLP kernels than with softmax",
            TABLE_15,
        ),
        more_models(
            "softmax",
            UNNORMALIZED,
            MASSIVE,
            "fewer are massive",
            "fewer models have a massive activation with these than with softmax",
            "Gu et al. 2025, section 7",
        ),
    ),
)

normalized_kernel = Question(
    name="normalised-kernel",
    asks="Does linear attention have a sink where its rows sum to one?",
    source=TABLE_15,
    base=STUDY,
    seeds=range(3, 10),
    variations=(SOFTMAX, operation("kernel_elu_normalized", sink_0=53.65, loss=4.19)),
    assertions=(
        most_models(
            "kernel_elu_normalized",
            SINK,
            "a sink",
            "most models with normalized linear attention have a sink",
            TABLE_15,
        ),
        above_ratio(
            1.0,
            log_ratio("sink_mass", "kernel_elu_normalized", "softmax"),
            "stronger",
            "normalized linear attention has more sink mass than softmax",
            TABLE_15,
        ),
        above(
            0.1,
            gap("loss", "kernel_elu_normalized", "softmax"),
            "worse",
            "the validation loss of normalized linear attention ends more than .1 nats above softmax's",
            TABLE_15,
            symmetric=True,
        ),
    ),
)

FAILING = ("elu_normalized", "kernel_elu", "kernel_identity_normalized")

failing = Question(
    name="failing",
    asks="Which similarities do not train with which normalizer?",
    source=TABLE_15,
    base=STUDY,
    seeds=range(13, 16),
    variations=(operation("softmax", NEW_BASE, sink_0=18.18, loss=3.73), *map(operation, FAILING)),
    assertions=(
        most_models(
            FAILING,
            FAILS,
            "fail",
            "most models with these diverge or end more than a nat above softmax",
            f"{TABLE_15}: fails to converge",
        ),
    ),
)

SETTINGS: dict[str, tuple[dict[str, Any], float, float]] = {
    "lr / 4": ({"optimizer.lr": times(1 / 4)}, 0.36, 4.08),
    "lr x 2.5": ({"optimizer.lr": times(2.5)}, 0.81, 3.68),
    "decay 0": ({"optimizer.weight_decay": 0.0}, 0.64, 3.77),
    "decay 0.5": ({"optimizer.weight_decay": 0.5}, 0.18, 3.76),
    "decay 1": ({"optimizer.weight_decay": 1.0}, 0.30, 4.06),
}

sigmoid_settings = Question(
    name="sigmoid-settings",
    asks="Do fewer sigmoid models have a sink under other rates and decays too?",
    source="Gu et al. 2025, Table 6 and appendix",
    base=STUDY,
    seeds=range(13, 16),
    variations=(
        operation("softmax", NEW_BASE, sink_0=18.18, loss=3.73),
        *(
            Variation(label, {"attention": "sigmoid", **changes}, {"sink_0": sink, "loss": loss})
            for label, (changes, sink, loss) in SETTINGS.items()
        ),
    ),
    assertions=(
        more_models(
            "softmax",
            tuple(SETTINGS),
            SINK,
            "fewer",
            "fewer models have a sink with sigmoid at these rates and decays than with softmax",
            "Gu et al. 2025: .18 to .81 % in six settings",
        ),
        most_models(
            tuple(SETTINGS), TRAINS, "trains", "most models train at these rates and decays", "Gu et al. 2025, appendix"
        ),
    ),
)

QUESTIONS = (normalization, sigmoid_longer, unnormalized, normalized_kernel, failing, sigmoid_settings)
