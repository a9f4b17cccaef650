"""Variations of one number: which they are, in which order, and where the one without it belongs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sinkscope.experiments import TIMES
from sinkscope.report.experiments.entry import ExperimentEntry

__all__ = [
    "FEWEST_DOSES",
    "NUMBERS",
    "OPERATION",
    "SAME_AS",
    "Doses",
    "by_dose",
    "doses",
    "grouped",
]

FEWEST_DOSES = 3  # of two, every difference is a line
NUMBERS = (int, float)
OPERATION = "attention.name"
# At which value of an option an operation of the catalog is another one, which a question may vary without the option.
SAME_AS: Mapping[tuple[str, str], tuple[str, float]] = {
    ("softmax_power", "p"): ("softmax", 1.0),
    ("sigmoid_power", "p"): ("sigmoid_normalized", 1.0),
    ("softmax_scaled", "alpha"): ("softmax", 1.0),
    ("k_bias_fixed_v", "norm"): ("k_bias", 0.0),
}


class Doses(NamedTuple):
    """Variations of one number, that number's name, and its value in each: in order, rising or falling.

    `without`: those of another operation, which has no such option.
    """

    name: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    without: tuple[str, ...] = ()


def doses(entry: ExperimentEntry) -> list[Doses]:
    """Variations that differ from each other in one number alone, at least three: a field, or an operation's option.

    Several series where something else varies too. One that leaves the field as it is belongs to those that change
    nothing else, at the recipe's value; an operation to those that are it at one value of their option (`SAME_AS`).
    They rise or fall as the changed ones do in the entry.
    """
    changed = [(variation.label, _flat(variation.changes)) for variation in entry.variations]
    series: dict[tuple[str, tuple[tuple[str, Any], ...]], dict[str, float]] = {}
    for name in dict.fromkeys(name for _, values in changed for name in values):
        usual = _usual(entry, name)
        for label, values in changed:
            others = tuple((other, value) for other, value in values.items() if other != name)
            if _is_number(values[name]) if name in values else not values:
                series.setdefault((name, others), {})[label] = _dose(values.get(name), usual)
    found = {kind: each for kind, each in series.items() if len(each) >= FEWEST_DOSES}
    made = []
    for (name, others), each in found.items():
        without = {label: dose for label, values in changed for dose in _same_as(name, dict(others), values)}
        made.append(_ordered(name, each, without))
    return made


def by_dose(labels: Sequence[str], series: Sequence[Doses]) -> list[str]:
    """These labels once each, those of a series behind each other in its order, from where its first one stood."""
    return list(dict.fromkeys(label for group in grouped(labels, series) for label in group if label in labels))


def grouped(labels: Sequence[str], series: Sequence[Doses]) -> list[tuple[str, ...]]:
    """The labels of each series together, and those between them that are in none; one may be in several series."""
    groups: list[tuple[str, ...]] = []
    apart: list[str] = []
    left = list(series)
    placed: set[str] = set()
    for label in labels:
        mine = [each for each in left if label in each.labels]
        if not mine and label not in placed:
            apart.append(label)
            continue
        for each in mine:
            if apart:
                groups.append(tuple(apart))
                apart = []
            groups.append(each.labels)
            placed |= {*each.labels}
            left.remove(each)
    return [*groups, tuple(apart)] if apart else groups


def _ordered(name: str, changed: Mapping[str, float], without: Mapping[str, float]) -> Doses:
    """The series by its doses, falling where the changed ones fall; those that are not known keep their places."""
    values = list(changed.values())
    if any(map(math.isnan, values)):
        return Doses(name, tuple(changed), tuple(values))
    rises = sum((later > earlier) - (later < earlier) for earlier, later in itertools.pairwise(values))
    order = sorted({**changed, **without}.items(), key=lambda pair: pair[1], reverse=rises < 0)
    return Doses(name, tuple(label for label, _ in order), tuple(value for _, value in order), tuple(without))


def _same_as(name: str, others: Mapping[str, Any], values: Mapping[str, Any]) -> list[float]:
    """The dose at which the series' operation is that of a variation which differs in nothing else; none if never."""
    operation, dose = SAME_AS.get((str(others.get(OPERATION)), name.rpartition(".")[2]), ("", math.nan))
    if not operation or values.get(OPERATION) != operation:
        return []
    return [dose] if all(others.get(other) == value for other, value in values.items() if other != OPERATION) else []


def _usual(entry: ExperimentEntry, name: str) -> float:
    """The value of a field as it is before anything is changed; NaN where that is no number."""
    value = {**_nested(entry.base), **entry.shared}.get(name)
    return float(value) if isinstance(value, NUMBERS) and not isinstance(value, bool) else math.nan


def _nested(fields: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Fields within fields under dotted names."""
    leaves: dict[str, Any] = {}
    for name, value in fields.items():
        leaves |= _nested(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return leaves


def _dose(value: Any, usual: float) -> float:
    """A changed value as a number; `usual`, the recipe's own, where it is not changed."""
    if value is None:
        return usual
    if isinstance(value, str):
        return float(value.removeprefix(TIMES)) * usual
    return float(value)


def _flat(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes with a name for each leaf: an operation's options, and its name where it is given alone."""
    leaves: dict[str, Any] = {}
    for name, value in changes.items():
        if isinstance(value, Mapping):
            leaves |= {f"{name}.{inner}": leaf for inner, leaf in _flat(value).items()}
        else:
            leaves[f"{name}.name" if name == "attention" else name] = value
    return leaves


def _is_number(value: Any) -> bool:
    """Whether a changed value is a number, or the recipe's own value times one."""
    return str(value).startswith(TIMES) or (isinstance(value, NUMBERS) and not isinstance(value, bool))
