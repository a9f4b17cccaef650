"""A page from whatever results were stored: run folders and measurement files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.probes import Measurement
from sinkscope.report import sections
from sinkscope.report.curves import SINK
from sinkscope.report.page import Headline, Page
from sinkscope.report.provenance import facts
from sinkscope.report.rates import rate_at, rates_by_position
from sinkscope.report.runs import StoredRun, read_run
from sinkscope.training.log import LOG

MOST_SIDE_BY_SIDE = 4
EPSILON = 0.3


def compose(paths: Iterable[Path], epsilon: float = EPSILON) -> Page:
    """The page of run folders, folders that hold runs, and `.nc` files. Raises `InputError` for anything else."""
    runs, measurements = read(paths)
    return results_page("Attention sinks: stored results", runs, measurements, epsilon)


def results_page(
    title: str, runs: Sequence[StoredRun], measurements: Mapping[str, Measurement], epsilon: float = EPSILON
) -> Page:
    """The page of results that were read already; up to four measurements are drawn side by side."""
    datasets = {name: measurement.data for name, measurement in measurements.items()}
    received = {name: data for name, data in datasets.items() if "attention_received" in data}
    parts = [sections.training(runs)] if runs else []
    if received:
        parts.append(sections.positions({name: rates_by_position(data, epsilon) for name, data in received.items()}))
    names = list(datasets)
    for start in range(0, len(names), MOST_SIDE_BY_SIDE):
        chosen = names[start : start + MOST_SIDE_BY_SIDE]
        parts += sections.describe({name: datasets[name] for name in chosen}, epsilon)
    at_first = {name: data for name, data in received.items() if 0 in data["position"].values}
    headlines = [
        *(
            Headline(f"{rate:.1f} %", f"{run.label}, step {run.step}")
            for run in runs
            if (rate := run.last(SINK)) is not None
        ),
        *(Headline(f"{rate_at(data, epsilon).value:.1f} %", name) for name, data in at_first.items()),
    ]
    lead = (
        f"Sink rate at position 0 (threshold {epsilon:g}): the percentage of (layer, head) pairs in which the first "
        "token receives more than that share of the attention."
    )
    records = {name: measurement.record for name, measurement in measurements.items()}
    return Page(title, lead, headlines, parts, facts(runs, records))


def read(paths: Iterable[Path]) -> tuple[list[StoredRun], dict[str, Measurement]]:
    """What the paths hold; names are file and folder names, numbered where they repeat."""
    runs: list[StoredRun] = []
    measurements: dict[str, Measurement] = {}
    for path in paths:
        folders = _run_folders(path)
        if path.suffix == ".nc":
            measurements[_free(path.stem, measurements)] = Measurement.load(path)
        elif folders:
            runs += [read_run(folder) for folder in folders]
        elif not path.exists():
            raise InputError(f"nothing at {path}")
        else:
            raise InputError(f"{path} is neither a run folder, a folder of runs, nor a measurement (.nc)")
    return runs, measurements


def _run_folders(path: Path) -> list[Path]:
    if (path / LOG).is_file():
        return [path]
    return sorted(folder.parent for folder in path.glob(f"*/{LOG}"))


def _free(name: str, taken: Mapping[str, object]) -> str:
    numbered = (f"{name} ({number})" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in numbered if other not in taken)
