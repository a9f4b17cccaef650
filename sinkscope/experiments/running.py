"""From a question to its findings: every run once, whatever interrupts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from sinkscope.experiments import findings as kept
from sinkscope.experiments.findings import Findings
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.observing import observed
from sinkscope.experiments.pool import Recipes, Sweep, work_locally
from sinkscope.experiments.question import Question
from sinkscope.experiments.runstore import RunStore
from sinkscope.files import check_writable

Watch = Callable[[Sweep], None]


@runtime_checkable
class Backend(Protocol):
    """Runs recipes (by the names of their folders) in a folder and says where it stands."""

    def __call__(self, recipes: Recipes, out: Path, workers: int, watch: Watch) -> Sweep: ...


def nobody(sweep: Sweep) -> None:
    """Watch nothing."""


def run(
    question: Question,
    *,
    scale: str = "nano",
    seeds: int = 3,
    out: Path = Path("runs"),
    results: Path = Path("results/experiments"),
    workers: int = 1,
    backend: Backend = work_locally,
    watch: Watch = nobody,
) -> Findings:
    """Run what of a question has not been run, and keep what was found under `results`.

    Runs are named by what decides their numbers: one that is settled in `out` is not repeated, one that was interrupted
    is resumed, and a run that two experiments share is made once. A run that fails is noted in the findings. Raises
    `InputError` as `Question.recipes` does, and for folders that cannot be written.
    """
    recipes = question.recipes(scale, seeds)
    for folder in (out, results):
        check_writable(folder)
    store = RunStore(out)
    named = {key: store.run(recipe) for key, recipe in recipes.items()}
    missing = {named[key].path.name: recipe for key, recipe in recipes.items() if not store.settled(named[key])}
    sweep = backend(missing, out, workers, watch) if missing else Sweep(waiting=[])
    runs: dict[str, dict[int, Observed]] = {variation.label: {} for variation in question.variations}
    failed: dict[str, dict[int, str]] = {}
    for (label, seed), made in named.items():
        if made.path.name in sweep.failed:
            failed.setdefault(label, {})[seed] = sweep.failed[made.path.name]
        else:
            runs[label][seed] = observed(made)
    found = Findings(question.name, scale, seeds, runs, failed, kept.provenance())
    kept.write(results, found)
    return found
