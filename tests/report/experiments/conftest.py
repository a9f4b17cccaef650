"""Experiments made by hand: planted sink rates, a diverged run, a failed one, and a question that was not run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sinkscope.experiments import Findings, Observed, Question, Variation, above, gap, level
from sinkscope.experiments.effects import gap_at_equal_loss
from sinkscope.report.experiments import ExperimentEntry, entry

EVIL = "<script>alert('&')</script>"
STEPS = tuple(range(100, 1501, 100))


def run(label: str, seed: int, rate: float, loss: float = 3.0, seconds: float = 420.0) -> Observed:
    """A finished run whose sink rate rises evenly to `rate`, and whose loss falls to `loss`."""
    curves = {
        "sink/position_0": tuple(rate * step / STEPS[-1] for step in STEPS),
        "validation_loss": tuple(loss + 2 * (1 - step / STEPS[-1]) for step in STEPS),
    }
    metrics = {"loss": loss, "sink_0": rate, "strongest": rate, "strongest_position": 0.0, "norm_ratio": 1 + rate / 2}
    return Observed(f"nano-{label}-{seed}", "finished", seed, metrics, STEPS, curves, seconds)


def diverged(label: str, seed: int) -> Observed:
    """A run that ended after 300 steps without a value."""
    curves = {"sink/position_0": (0.0, 0.0, 0.0), "validation_loss": (7.0, 9.0, 20.0)}
    return Observed(f"nano-{label}-{seed}", "diverged", seed, {}, STEPS[:3], curves, 60.0, "the loss became NaN")


def question(name: str = "normalisation", **changed: object) -> Question:
    """Softmax (published 18.18 %) against the sigmoid (0.44 %): two claims, one of them at equal loss."""
    parts = {
        "name": name,
        "asks": "Is it the normalisation?",
        "source": "Gu et al. 2025, Table 6",
        "note": "Asked <twice>.",
        "variations": (
            Variation("softmax", {}, {"sink_0": 18.18, "loss": 3.73}),
            Variation("sigmoid", {"attention": "sigmoid"}, {"sink_0": 0.44}),
        ),
        "assertions": (
            above(3.0, gap("sink_0", "softmax", "sigmoid"), "gap", "softmax has more by 3 points", "Table 6", fewest=3),
            above(
                1.0,
                gap_at_equal_loss("softmax", "sigmoid"),
                "equal loss",
                "and by 1 point at equal loss",
                "Table 6",
                fewest=3,
            ),
        ),
        "seeds": 3,
    }
    return Question(**{**parts, **changed})


def doses(name: str = "weight-decay") -> Question:
    """A question with one number varied."""
    decays = (0.0, 0.1, 2.0)
    return Question(
        name,
        f"How much decay? {EVIL}",
        "Gu et al. 2025, Table 2",
        tuple(Variation(f"{decay:g}", {"optimizer.weight_decay": decay}, {"sink_0": 10.0}) for decay in decays),
        (above(0.0, gap("sink_0", "2", "0.1"), f"more {EVIL}", f"a decay of 2 has more {EVIL}", "Table 2", fewest=3),),
        seeds=3,
    )


def found(**runs: dict[int, Observed]) -> Findings:
    versions = {"versions": {"torch": "2.13.0", "python": "3.11.7"}}
    return Findings("normalisation", "nano", 3, runs, {}, versions)


@pytest.fixture
def normalisation() -> ExperimentEntry:
    """More at equal steps: 9 − 1, 10 − 1, 11 − 1."""
    softmax = {seed: run("softmax", seed, 9.0 + seed) for seed in range(3)}
    sigmoid = {seed: run("sigmoid", seed, 1.0, loss=3.4) for seed in range(3)}
    return entry(question(), found(softmax=softmax, sigmoid=sigmoid))


@pytest.fixture
def weight_decay() -> ExperimentEntry:
    """Open with two models: seed 2 diverged at a decay of 0, and failed at one of 2."""
    runs = {
        f"{decay:g}": {s: run(f"d{decay:g}", s, 6 - decay, seconds=600.0) for s in range(2)}
        for decay in (0.0, 0.1, 2.0)
    }
    runs["0"][2] = diverged("d0", 2)
    runs["0.1"][2] = run("d0.1", 2, 5.0, seconds=600.0)
    failed = {"2": {2: f"out of memory {EVIL}"}}
    asked = Findings("weight-decay", "nano", 3, runs, failed, {"versions": {"torch": "2.13.0"}})
    return entry(doses(), asked)


@pytest.fixture
def absent() -> ExperimentEntry:
    """Not run, for a reason that the question gives."""
    one = Variation("softmax", {}, {"sink_0": 92.47})
    claim = above(1.0, level("sink_0", "softmax"), "there", "there is a sink", "Table 1")
    return entry(Question("inputs", "Text?", "Table 1", (one,), (claim,), not_at={"nano": "no BOS"}, seeds=3), None)


@pytest.fixture
def entries(
    normalisation: ExperimentEntry, weight_decay: ExperimentEntry, absent: ExperimentEntry
) -> list[ExperimentEntry]:
    return [normalisation, weight_decay, absent]


@pytest.fixture
def many() -> Callable[[int], list[ExperimentEntry]]:
    """So many experiments with 25 runs each."""

    def make(experiments: int) -> list[ExperimentEntry]:
        labels = [f"variation {index}" for index in range(5)]
        asked = [
            question(
                f"question-{number}",
                variations=tuple(Variation(label, {"attention": "sigmoid"}, {"sink_0": 9.0}) for label in labels),
                assertions=(
                    above(0.0, gap("sink_0", labels[1], labels[0]), "more", "there is more", "Tables 6 and 15"),
                ),
                seeds=5,
            )
            for number in range(experiments)
        ]
        made = []
        for each in asked:
            runs = {
                label: {seed: run(f"{each.name}-{index}", seed, index + seed / 5) for seed in range(5)}
                for index, label in enumerate(labels)
            }
            made.append(entry(each, Findings(each.name, "nano", 5, runs)))
        return made

    return make
