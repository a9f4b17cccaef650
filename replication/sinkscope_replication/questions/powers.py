"""What does the p-norm of a row's weights do to training and to massive activations?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
FEW = (3, 4, 5)

FAILS, TRAINS = Has("loss", 4.1, diverged=True), Has("loss", at_most=4.1, diverged=False)  # softmax ends at 3.1 nats

SECTION_7 = "Gu et al. 2025, section 7"


def operation(
    name: str, label: str = "", options: dict[str, Any] | None = None, seeds: Any = None, **published: float
) -> Variation:
    """An operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published, seeds)


POWERS = {"1/4": 0.25, "1/3": 1 / 3, "1/2": 0.5, "2": 2.0, "3": 3.0, "4": 4.0}
SIGMOIDS = ("sigmoid, p = 2", "sigmoid, p = 3", "sigmoid, p = 4")

QUESTION = Question(
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
