"""Do fewer sigmoid models have a sink under other rates and decays too?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models, most_models, times

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
SINK = Has("sink_0", 3.0)
TRAINS = Has("loss", at_most=4.1, diverged=False)


def operation(name: str, seeds: Any = None, **published: float) -> Variation:
    """An operation of the catalog."""
    return Variation(name, {"attention": name}, published, seeds)


SETTINGS: dict[str, tuple[dict[str, Any], float, float]] = {
    "lr / 4": ({"optimizer.lr": times(1 / 4)}, 0.36, 4.08),
    "lr x 2.5": ({"optimizer.lr": times(2.5)}, 0.81, 3.68),
    "decay 0": ({"optimizer.weight_decay": 0.0}, 0.64, 3.77),
    "decay 0.5": ({"optimizer.weight_decay": 0.5}, 0.18, 3.76),
    "decay 1": ({"optimizer.weight_decay": 1.0}, 0.30, 4.06),
}

QUESTION = Question(
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
