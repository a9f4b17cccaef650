"""Many training runs as an experiment without claims: grouped by the fields in which their recipes differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sinkscope.experiments import Findings, Observed, Variation
from sinkscope.report.curves import LOSS, SINK, VALIDATION_LOSS
from sinkscope.report.experiments.entry import ExperimentEntry
from sinkscope.report.experiments.names import counted, in_words
from sinkscope.report.runs import StoredRun
from sinkscope.training import WITHOUT_INFLUENCE

LAST = {"loss": VALIDATION_LOSS, "train_loss": LOSS, "sink_0": SINK, "strongest": "sink/strongest"}


def entry_of_runs(runs: Sequence[StoredRun]) -> ExperimentEntry:
    """Runs by variation. Runs of one recipe differ by their seeds; a second run with the same seed gets its name."""
    recipes = [dict(_leaves(run.record.get("recipe", {}))) for run in runs]
    differing = [
        name
        for name in dict.fromkeys(name for recipe in recipes for name in recipe)
        if len({json.dumps(recipe.get(name), sort_keys=True) for recipe in recipes}) > 1
    ]
    variations: dict[str, Variation] = {}
    by_label: dict[str, dict[int, Observed]] = {}
    for run, recipe in zip(runs, recipes, strict=True):
        changes = {name: recipe[name] for name in differing if name in recipe}
        label = ", ".join(f"{name.rpartition('.')[2]} = {in_words(value)}" for name, value in changes.items()) or "all"
        seed = _seed(run)
        if seed in by_label.get(label, {}):
            label = f"{label} ({run.label})"
        variations.setdefault(label, Variation(label, changes))
        by_label.setdefault(label, {})[seed] = observed(run)
    return ExperimentEntry(
        "runs",
        f"{counted(len(runs), 'run')}, {counted(len(variations), 'configuration')}",
        "",
        "",
        tuple(variations.values()),
        findings=Findings("runs", "", len({_seed(run) for run in runs}), by_label),
    )


def observed(run: StoredRun) -> Observed:
    """A run from its log and record: the curves over its evaluations, and the last value of each metric."""
    evaluated = [row for row in run.rows if row.get(VALIDATION_LOSS) is not None]
    curves = {name: tuple(_number(row.get(name)) for row in evaluated) for name in (VALIDATION_LOSS, SINK)}
    last = {name: run.last(metric) for name, metric in LAST.items()}
    record = run.record
    return Observed(
        run.label,
        str(record.get("status", "unknown")),
        _seed(run),
        {name: value for name, value in last.items() if value is not None},
        tuple(int(row["step"]) for row in evaluated),
        curves,
        _number(record.get("seconds"), 0.0),
        str(record.get("reason") or ""),
    )


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted fields of a recipe that change its numbers, without the seed."""
    for name, value in values.items():
        dotted = f"{above}{name}"
        if dotted == "seed" or dotted in WITHOUT_INFLUENCE:
            continue
        if isinstance(value, Mapping) and dotted != "attention":
            yield from _leaves(value, f"{dotted}.")
        else:
            yield dotted, value


def _seed(run: StoredRun) -> int:
    seed = run.record.get("seed")
    return seed if isinstance(seed, int) else 0


def _number(value: Any, missing: float = float("nan")) -> float:
    return float(value) if isinstance(value, int | float) else missing
