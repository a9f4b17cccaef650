"""What the demonstration found, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sinkscope.report.curves import RATIO, SINK, VALIDATION_LOSS
from sinkscope.report.runs import StoredRun


@dataclass(frozen=True)
class Ending:
    """Where a run stood at the end; None for what was not measured yet."""

    run: str
    step: int
    sink_rate: float | None
    validation_loss: float | None
    hidden_norm_ratio: float | None


@dataclass(frozen=True)
class Closing:
    """The closing numbers: sink rates of the shipped model by input, where the runs stand, the page, the time taken."""

    quick: bool
    inputs: dict[str, float]
    runs: dict[str, Ending]
    report: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def ending(run: StoredRun, folder: Path) -> Ending:
    """Where a stored run stands."""
    return Ending(str(folder), run.step, run.last(SINK), run.last(VALIDATION_LOSS), run.last(RATIO))
