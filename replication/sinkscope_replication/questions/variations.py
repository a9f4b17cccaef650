"""What questions vary: operations, fields of the model, and multiples of what a scale's recipe says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sinkscope.experiments import RECIPE_OF, TIMES, Scale, Variation

if TYPE_CHECKING:
    from sinkscope.experiments import Job

OTHERS = (4, 9, 14, 19, 24)  # positions exchanged with the first, 0-based (Gu et al. 2025, Table 7)


def operation(name: str, label: str = "", options: dict[str, Any] | None = None, **published: float) -> Variation:
    """The recipe under an operation of the catalog with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published)


def model(label: str, fields: dict[str, Any], **published: float) -> Variation:
    """The recipe with fields of the model changed."""
    return Variation(label, {f"model.{name}": value for name, value in fields.items()}, published)


SOFTMAX = operation("softmax", sink_0=18.18, loss=3.73)  # Gu et al. 2025, the 60M model
NANO_RATES: dict[Scale, str] = dict.fromkeys(("mini", "paper"), "its learning rates are multiples of nano's")


def times(factor: float) -> str:
    """The recipe's own value times a factor; as text, since the changes of a question are shown as JSON."""
    return f"{TIMES}{factor}"


LR_8 = Variation("lr / 8", {"optimizer.lr": times(1 / 8)})
LR_4 = Variation("lr / 4", {"optimizer.lr": times(1 / 4)}, {"sink_0": 2.90, "loss": 3.92})  # Gu et al. 2025, Table 9
LR = Variation("lr", {}, {"sink_0": 18.18, "loss": 3.73})


def training(scale: str, changes: Mapping[str, Any]) -> Job:
    """A question's `base`: the recipe of a scale with dotted fields changed, read as the study does."""
    return recipe_named(RECIPE_OF[scale], changes)  # type: ignore[index]


def relative(scale: str, changes: Mapping[str, Any]) -> Job:
    """A question's `base`: the recipe of a scale, in which changes made with `times` are multiples of its values.

    Whole numbers stay whole: 750 steps are `times(0.5)` of 1,500.
    """
    own = training(scale, {}).model_dump(mode="json")
    return training(scale, {key: _value(own, key, value) for key, value in changes.items()})


def micro(scale: str, changes: Mapping[str, Any]) -> Job:
    """A question's `base`: the recipe `micro`, with fields changed."""
    return recipe_named("micro", changes)


def nano_sft(scale: str, changes: Mapping[str, Any]) -> Job:
    """A question's `base`: the recipe that tunes the shipped `nano`, with fields changed."""
    return recipe_named("nano-sft", changes)


def recipe_named(name: str, changes: Mapping[str, Any]) -> Job:
    """A recipe with dotted fields changed. It needs torch, which questions can be listed without."""
    from sinkscope_replication.training import StudyTraining

    return StudyTraining.changed(name, changes)


def _value(own: Mapping[str, Any], key: str, value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith(TIMES)):
        return value
    found: Any = own
    for part in key.split("."):
        found = found[part]
    factor = float(value.removeprefix(TIMES))
    return round(found * factor) if isinstance(found, int) else found * factor
