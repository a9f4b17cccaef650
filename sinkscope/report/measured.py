"""The page of one measurement, in one call."""

from __future__ import annotations

from pathlib import Path

from sinkscope.measurement import Measurement
from sinkscope.report.observatory import observatory_page
from sinkscope.report.page import write_page


def write(measurement: Measurement, path: str | Path, epsilon: float = 0.3, title: str | None = None) -> Path:
    """Write the page of a measurement, one self-contained file; where it is. What `Measurement.report` calls."""
    tables = measurement.tables(epsilon)
    page = observatory_page(
        measurement,
        title or f"Attention sink of {measurement.record['model']}",
        epsilon,
        definitions=tables["definitions"],
        tokens=tables.get("tokens"),
    )
    target = Path(path)
    write_page(page, target)
    return target
