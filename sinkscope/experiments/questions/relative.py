"""Values that are multiples of what a scale's recipe says, so that one question holds at every scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.experiments.job import Job
from sinkscope.experiments.question import recipe

TIMES = "times "


def times(factor: float) -> str:
    """The recipe's own value times a factor; as text, since the changes of a question are shown as JSON."""
    return f"{TIMES}{factor}"


def relative(scale: str, changes: Mapping[str, Any]) -> Job:
    """A question's `base`: the recipe of a scale, in which changes made with `times` are multiples of its values.

    Whole numbers stay whole: 750 steps are `times(0.5)` of 1,500.
    """
    own = recipe(scale, {}).model_dump(mode="json")
    return recipe(scale, {key: _value(own, key, value) for key, value in changes.items()})


def _value(own: Mapping[str, Any], key: str, value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith(TIMES)):
        return value
    found: Any = own
    for part in key.split("."):
        found = found[part]
    factor = float(value.removeprefix(TIMES))
    return round(found * factor) if isinstance(found, int) else found * factor
