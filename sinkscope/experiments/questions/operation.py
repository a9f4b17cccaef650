"""What questions about operations share: variations by catalogue name, and the softmax that they stand beside."""

from __future__ import annotations

from typing import Any

from sinkscope.experiments.question import Scale, Variation


def operation(name: str, label: str = "", options: dict[str, Any] | None = None, **published: float) -> Variation:
    """The recipe under an operation of the catalogue with options."""
    return Variation(label or name, {"attention": {"name": name, **options} if options else name}, published)


def model(label: str, fields: dict[str, Any], **published: float) -> Variation:
    """The recipe with fields of the model changed."""
    return Variation(label, {f"model.{name}": value for name, value in fields.items()}, published)


SOFTMAX = operation("softmax", sink_0=18.18, loss=3.73)  # Gu et al. 2025, the 60M model
NANO_RATES: dict[Scale, str] = dict.fromkeys(("mini", "paper"), "its learning rates are multiples of nano's")
