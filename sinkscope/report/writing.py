"""The page of any result, `sinkscope.write_report`, and one page of many stored results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.checks import Card
from sinkscope.errors import InputError
from sinkscope.measurement import (
    Comparison,
    Comparisons,
    Measurement,
    Survey,
    rates_by_position,
    slot_mass,
    stack_rates,
)
from sinkscope.names import short
from sinkscope.quantization import Hazards
from sinkscope.report import sections
from sinkscope.report.check_page import check_page
from sinkscope.report.comparison_page import comparison_page
from sinkscope.report.curves import SINK
from sinkscope.report.experiments import page as experiments
from sinkscope.report.experiments.from_runs import entry_of_runs
from sinkscope.report.hazards_page import hazards_page
from sinkscope.report.observatory import observatory_page
from sinkscope.report.observatory.page import slot_card
from sinkscope.report.page import Headline, Page, Section, write_page
from sinkscope.report.provenance import facts
from sinkscope.report.runs import StoredRun
from sinkscope.report.stored import Stored, read_results
from sinkscope.report.survey_page import survey_page
from sinkscope.report.trial_page import trial_page
from sinkscope.statistics.claims import Verdict, cells, tally
from sinkscope.training import Run
from sinkscope.trials import Trial

__all__ = ["claims_section", "compose", "measurement_page", "page_of_result", "results_page", "write_report"]

MOST_SIDE_BY_SIDE = 4
MOST_RUNS = 12  # more runs are grouped, and drawn when a reader opens them
EPSILON = 0.3
TITLE = "Attention sinks: stored results"
CLAIM = ("claim", "grade", "found", "asked", "cases", "statement", "source")


def compose(paths: Iterable[Path], epsilon: float = EPSILON) -> Page:
    """The page of the results at the paths; raises `InputError` as `read_results` does.

    A single result that has a page of its own gets that page.
    """
    stored = read_results(paths)
    if len(stored.pages) == 1 and replace(stored, pages={}) == Stored():
        return next(iter(stored.pages.values()))
    return results_page(TITLE, stored, epsilon)


def results_page(title: str, stored: Stored, epsilon: float = EPSILON) -> Page:
    """The page of results that were already read; up to four measurements are drawn side by side."""
    pages = [*(survey_page(survey) for survey in stored.surveys.values()), *stored.pages.values()]
    named = zip((*stored.surveys, *stored.pages), pages, strict=True)
    parts = [
        *(experiments.experiment_sections(stored.entries) if stored.entries else []),
        *_training(stored.runs),
        *_measured(stored, epsilon),
        *(replace(part, title=f"{name}: {part.title}") for name, page in named for part in page.sections),
        *(claims_section(name, verdicts) for name, verdicts in stored.claims.items()),
    ]
    headlines = [
        *(experiments.headlines(stored.entries) if stored.entries else []),
        *_rates(stored, epsilon),
        *(card for page in pages for card in page.headlines),
    ]
    provenance = experiments.provenance(stored.entries)
    for more in (_sources(stored), *(page.provenance for page in pages)):
        provenance = {**provenance, **more}
    folded = bool(stored.entries) or len(stored.runs) > MOST_RUNS
    scripts, styles = (experiments.SCRIPTS, experiments.STYLES) if folded else ((), ())
    return Page(title, _lead(stored, epsilon), headlines, parts, provenance, scripts, styles)


def _lead(stored: Stored, epsilon: float) -> str:
    if stored.entries:
        return experiments.LEAD
    return (
        f"Sink rate at position 0 (threshold {epsilon:g}): the percentage of (layer, head) pairs in which the first "
        "token receives more than that share of the attention."
    )


def _training(runs: Sequence[StoredRun]) -> list[Section]:
    if len(runs) > MOST_RUNS:
        return [experiments.runs_section(entry_of_runs(runs))]
    return [sections.training(runs)] if runs else []


def _measured(stored: Stored, epsilon: float) -> list[Section]:
    datasets = {name: measurement.data for name, measurement in stored.measurements.items()}
    received = {name: data for name, data in datasets.items() if "attention_received" in data}
    parts: list[Section] = []
    if received:
        parts.append(sections.positions({name: rates_by_position(data, epsilon) for name, data in received.items()}))
    names = list(datasets)
    for start in range(0, len(names), MOST_SIDE_BY_SIDE):
        chosen = names[start : start + MOST_SIDE_BY_SIDE]
        parts += sections.describe({name: datasets[name] for name in chosen}, epsilon)
    return parts


def _rates(stored: Stored, epsilon: float) -> list[Headline]:
    """The sink rate of each measurement, and of each run if there are few; then the attention on slots."""
    runs = stored.runs if len(stored.runs) <= MOST_RUNS else []
    ended = [(run, rate) for run in runs if (rate := run.last(SINK)) is not None]
    measured = {
        name: measurement.data
        for name, measurement in stored.measurements.items()
        if "attention_received" in measurement.data and 0 in measurement.data["position"].values
    }
    return [
        *(Headline(f"{rate:.1f} %", f"{run.label}, step {run.step}") for run, rate in ended),
        *(
            Headline(f"{rate.value:.1f} %", name if len(rates) == 1 else f"{name}, {stack}")
            for name, data in measured.items()
            for rates in [stack_rates(data, epsilon)]
            for stack, rate in rates.items()
        ),
        *(
            slot_card(mass, name)
            for name, measurement in stored.measurements.items()
            if (mass := slot_mass(measurement.data, epsilon)) is not None
        ),
    ]


def _sources(stored: Stored) -> dict[str, str]:
    """The provenance of runs and measurements; for many runs, that of the first."""
    runs = stored.runs if len(stored.runs) <= MOST_RUNS else stored.runs[:1]
    records = {name: measurement.record for name, measurement in stored.measurements.items()}
    return facts(runs, records) if runs or records else {}


def claims_section(topic: str, verdicts: Sequence[Verdict]) -> Section:
    """The verdicts on a topic as a table."""
    frame = pd.DataFrame([cells(verdict, *CLAIM) for verdict in verdicts], columns=list(CLAIM))
    return Section(f"Claims: {topic}", f"{tally(verdicts).capitalize()}.", table=frame, unfolded=True)


KINDS = "a measurement, a comparison, a trial, a report card, hazards, a survey, a run, or paths of stored results"


def write_report(result: Any, path: str | Path, *, epsilon: float | None = None, title: str | None = None) -> Path:
    """Write the page of a result, one HTML file that opens without a network; return where it is.

    Args:
        result: what `sinkscope.measure`, `compare`, `check`, `train` and `trials` return, a survey, hazards of
            quantization, or the path of what a command stored, or several paths for one page.
        path: the file to write.
        epsilon: the share of attention above which a token is a sink, 0.3 by default: for measurements, comparisons,
            runs and paths. The other results carry their own.
        title: the page's title, in place of its own.

    Raises `InputError` for another kind of result, for an epsilon that the result does not read, and where the page
    cannot be written.
    """
    page = page_of_result(result, epsilon)
    return write_page(page if title is None else replace(page, title=title), path)


def page_of_result(result: Any, epsilon: float | None = None) -> Page:
    """The page of a result, as `write_report` writes it."""
    threshold = EPSILON if epsilon is None else epsilon
    if isinstance(result, Measurement):
        return measurement_page(result, threshold)
    if isinstance(result, Comparison | Comparisons):
        return comparison_page(result, threshold)
    if isinstance(result, Run):
        return compose([result.path], threshold)
    if isinstance(result, str | Path):
        return compose([Path(result)], threshold)
    if isinstance(result, Iterable) and (paths := [*result]) and all(isinstance(path, str | Path) for path in paths):
        return compose(map(Path, paths), threshold)
    if epsilon is not None:
        raise InputError(f"write_report: epsilon is not read for a {type(result).__name__}")
    if isinstance(result, Trial):
        return trial_page(result)
    if isinstance(result, Card):
        return check_page(result)
    if isinstance(result, Hazards):
        return hazards_page(result)
    if isinstance(result, Survey):
        return survey_page(result)
    raise InputError(f"write_report: no page for a {type(result).__name__}; expected {KINDS}")


def measurement_page(measurement: Measurement, epsilon: float) -> Page:
    """The page of a measurement, as `sinkscope measure` writes it, without attention maps."""
    tables = measurement.tables(epsilon)
    return observatory_page(
        measurement,
        f"Attention sink of {short(measurement.record['model'])}",
        epsilon,
        definitions=tables["definitions"],
        tokens=tables.get("tokens"),
    )
