"""Variations of one number: which they are, their order, and the place of a variation without this number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sinkscope.experiments import TIMES
from sinkscope.report.experiments.entry import ExperimentEntry

FEWEST_DOSES = 3  # two points are always on a line
NUMBERS = (int, float)
OPERATION = "attention.name"
# The value of an option at which an operation of the catalog equals another one, which has no such option.
SAME_AS: Mapping[tuple[str, str], tuple[str, float]] = {
    ("softmax_power", "p"): ("softmax", 1.0),
    ("sigmoid_power", "p"): ("sigmoid_normalized", 1.0),
    ("softmax_scaled", "alpha"): ("softmax", 1.0),
    ("k_bias_fixed_v", "norm"): ("k_bias", 0.0),
}


class Doses(NamedTuple):
    """Variations of one number: its name, and its value in each variation, rising or falling.

    `without`: variations of another operation, which has no such option.
    """

    name: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    without: tuple[str, ...] = ()


def doses(entry: ExperimentEntry) -> list[Doses]:
    """Series of at least three variations that differ only in one number: a field, or an operation's option.

    There are several series if something else varies too. A variation that does not change the field belongs, at the
    recipe's value, to the series that changes nothing else; an operation belongs to the series that equals it at one
    value of its option (`SAME_AS`). A series rises or falls as the changed variations do in the entry.
    """
    changed = [(variation.label, _flat(variation.changes)) for variation in entry.variations]
    series: dict[tuple[str, tuple[tuple[str, Any], ...]], dict[str, float]] = {}
    for name in dict.fromkeys(name for _, values in changed for name in values):
        usual = _usual(entry, name)
        for label, values in changed:
            others = tuple((other, value) for other, value in values.items() if other != name)
            if _is_number(values[name]) if name in values else not values:
                series.setdefault((name, others), {})[label] = _dose(values.get(name), usual)
    long_enough = {kind: each for kind, each in series.items() if len(each) >= FEWEST_DOSES}
    made = []
    for (name, others), each in long_enough.items():
        without = {label: dose for label, values in changed for dose in _same_as(name, dict(others), values)}
        made.append(_ordered(name, each, without))
    return made


def by_dose(labels: Sequence[str], series: Sequence[Doses]) -> list[str]:
    """These labels once each; those of a series follow each other in its order, from the place of its first one."""
    return list(dict.fromkeys(label for group in grouped(labels, series) for label in group if label in labels))


def grouped(labels: Sequence[str], series: Sequence[Doses]) -> list[tuple[str, ...]]:
    """The labels of each series together, and the other labels between them; a label may be in several series."""
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
    """The series by its doses, falling if the changed ones fall; unknown doses keep their places."""
    values = list(changed.values())
    if any(map(math.isnan, values)):
        return Doses(name, tuple(changed), tuple(values))
    rises = sum((later > earlier) - (later < earlier) for earlier, later in itertools.pairwise(values))
    order = sorted({**changed, **without}.items(), key=lambda pair: pair[1], reverse=rises < 0)
    return Doses(name, tuple(label for label, _ in order), tuple(value for _, value in order), tuple(without))


def _same_as(name: str, others: Mapping[str, Any], values: Mapping[str, Any]) -> list[float]:
    """The dose at which the series equals a variation of another operation; empty if there is none."""
    operation, dose = SAME_AS.get((str(others.get(OPERATION)), name.rpartition(".")[2]), ("", math.nan))
    if not operation or values.get(OPERATION) != operation:
        return []
    return [dose] if all(others.get(other) == value for other, value in values.items() if other != OPERATION) else []


def _usual(entry: ExperimentEntry, name: str) -> float:
    """The unchanged value of a field; NaN if it is not a number."""
    value = {**_nested(entry.base), **entry.shared}.get(name)
    return float(value) if isinstance(value, NUMBERS) and not isinstance(value, bool) else math.nan


def _nested(fields: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested fields under dotted names."""
    leaves: dict[str, Any] = {}
    for name, value in fields.items():
        leaves |= _nested(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return leaves


def _dose(value: Any, usual: float) -> float:
    """A changed value as a number; `usual`, the recipe's value, if it is not changed."""
    if value is None:
        return usual
    if isinstance(value, str):
        return float(value.removeprefix(TIMES)) * usual
    return float(value)


def _flat(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes with a name for each leaf: an operation's options, and its name if it has no options."""
    leaves: dict[str, Any] = {}
    for name, value in changes.items():
        if isinstance(value, Mapping):
            leaves |= {f"{name}.{inner}": leaf for inner, leaf in _flat(value).items()}
        else:
            leaves[f"{name}.name" if name == "attention" else name] = value
    return leaves


def _is_number(value: Any) -> bool:
    """Whether a changed value is a number, or a multiple of the recipe's value."""
    return str(value).startswith(TIMES) or (isinstance(value, NUMBERS) and not isinstance(value, bool))
