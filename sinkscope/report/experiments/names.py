"""How metrics, numbers and costs are called before a reader."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

TITLES: Mapping[str, str] = {
    "sink/position_0": "sink rate at position 0 (%)",
    "validation_loss": "validation loss (nats)",
    "sink/strongest": "strongest sink rate (%)",
    "loss": "validation loss (nats)",
    "train_loss": "training loss (nats)",
    "strongest": "strongest sink rate (%)",
    "strongest_position": "strongest position",
    "slot": "sink rate of the slot (%)",
    "norm_ratio": "hidden-norm ratio",
    "value_ratio": "value-norm ratio",
}
READINGS: Mapping[str, str] = {
    "random": "on random tokens",
    "repeated": "on a repeated token",
    "without_first": "without the first token",
}
MINUTE, HOUR = 60, 3600


def title(metric: str) -> str:
    """A metric of `Observed` in words with its unit; a name that is not known stays as it is.

    `title("sink_0/tokens=16")` is "sink rate at position 0 (%), 16 tokens".
    """
    if metric in TITLES:
        return TITLES[metric]
    base, _, reading = metric.partition("/")
    position = re.fullmatch(r"sink_(\d+)", base)
    words = f"sink rate at position {position[1]} (%)" if position else TITLES.get(base, base)
    if not reading:
        return words
    kind, _, value = reading.partition("=")
    told = {"epsilon": f"ε = {value}", "tokens": f"{value} tokens"}.get(kind, READINGS.get(reading, reading))
    return f"{words}, {told}"


def number(value: float | None) -> str:
    """Three figures; a dash for what is none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value + 0.0:.3g}".replace("-", "−")  # minus zero plus zero is zero


def effect(residual: float | None, spread: float | None) -> str:
    """What a claim found, with its spread: "4.21 ± 0.3"."""
    return number(residual) if not spread else f"{number(residual)} ± {spread:.2g}"


def cost(seconds: float | int) -> str:
    """Seconds in the unit that a reader would choose."""
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.1f} h"


def said(value: Any) -> str:
    """A recipe's value in a phrase: pieces by their kind and settings, `and(causal, window(size=16))`."""
    if isinstance(value, Mapping):
        kind = value.get("kind", value.get("name"))
        parts = [said(part) if isinstance(part, Mapping) else f"{name} = {said(part)}" for name, part in value.items()
                 if name not in ("kind", "name")]  # fmt: skip
        return ", ".join(parts) if kind is None else f"{kind}({', '.join(parts)})" if parts else str(kind)
    if isinstance(value, list | tuple):
        return ", ".join(map(said, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def counted(many: int, one: str) -> str:
    """`counted(3, "run")` is "3 runs"."""
    return f"{many:,} {one}" if many == 1 else f"{many:,} {one}s"
