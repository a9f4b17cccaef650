"""`sinkscope measure --text FOLDER`: every file and folder in it by itself, and one table over them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.cli.measuring.folders import old_files
from sinkscope.cli.measuring.job import MeasuringJob
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.files import replacing, write_json, write_text
from sinkscope.measurement import Measurement, rate_at, stack_rates
from sinkscope.report import sections
from sinkscope.report.page import Page, write_page
from sinkscope.report.provenance import facts
from sinkscope.report.terminal import note, plain, show, table

ABOUT = (
    "The sink rate at position 0 on texts of each domain, with 95 % intervals over samples. The paper found "
    "little difference between 17 domains of the Pile."
)


def measure_domains(job: MeasuringJob, places: Mapping[str, Path], folder: Path) -> list[dict[str, Any]]:
    """Measure domain after domain, each by itself; then write `DOMAIN/measurement.nc`, table, JSON and page over all.

    A domain whose files are too short, or are not text, is a row with the reason. Raises `InputError` if all are.
    """
    rows: list[dict[str, Any]] = []
    found: dict[str, Measurement] = {}
    for name, place in places.items():
        try:
            given = job.reading(place)
        except UnsupportedModelError:
            raise  # of no text could it be measured
        except InputError as error:
            note(f"{name}: left out: {error}")
            rows.append({"domain": name, "reason": str(error)})
            continue
        found[name] = job.measured(given, name)
        rows.append(_row(name, found[name], job.epsilon))
    if not found:
        raise InputError(f"no domain can be measured; {rows[0]['domain']}: {rows[0]['reason']}")
    _write(job, rows, found, folder)
    return rows


def _row(name: str, measured: Measurement, epsilon: float) -> dict[str, Any]:
    """A domain's numbers; of a model with several stacks also each stack's rate."""
    rate, stacks = rate_at(measured.data, epsilon), stack_rates(measured.data, epsilon)
    apart = {f"sink_rate_{stack}": found.value for stack, found in stacks.items()} if len(stacks) > 1 else {}
    samples = measured.record["samples"]
    return {"domain": name, "samples": samples, "sink_rate": rate.value, "low": rate.low, "high": rate.high, **apart}


def show_domains(rows: list[dict[str, Any]], folder: Path) -> None:
    """A row per domain on the terminal, and where the files are."""
    cells = [
        (row["domain"], row["reason"], "", "")
        if "reason" in row
        else (row["domain"], f"{row['sink_rate']:.1f}", f"{row['low']:.1f} – {row['high']:.1f}", row["samples"])
        for row in rows
    ]
    show(plain("each file, and each folder, was measured by itself:"))
    show(table(("domain", "sink rate, %", "95 % interval", "samples"), cells))
    show(plain(f"written: {folder}/domains.csv, {folder}/domains.json, {folder}/figure.html"))


def _write(job: MeasuringJob, rows: list[dict[str, Any]], found: Mapping[str, Measurement], folder: Path) -> None:
    frame = pd.DataFrame(rows)
    known = frame[frame["sink_rate"].notna()].rename(columns={"domain": "input"})
    page = Page(
        title=f"Attention sink of {job.name}, by domain",
        lead=f"One model on {len(found)} domains of text; a head counts where position 0 gets over {job.epsilon:g}.",
        sections=[sections.inputs(known[["input", "sink_rate", "low", "high", "samples"]], ABOUT)],
        provenance=facts([], {name: measurement.record for name, measurement in found.items()}),
    )
    with replacing(folder, partial(old_files, "measure")) as draft:
        for name, measurement in found.items():
            measurement.save(draft / name / "measurement.nc")
        write_text(draft / "domains.csv", frame.to_csv(index=False))
        write_json(draft / "domains.json", rows)
        write_page(page, draft / "figure.html")
