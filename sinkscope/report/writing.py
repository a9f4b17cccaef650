"""The one door to pages: `sinkscope.write_report`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sinkscope.checks import Card
from sinkscope.errors import InputError
from sinkscope.measurement import Comparison, Comparisons, Measurement, Survey
from sinkscope.names import short
from sinkscope.quantization import Hazards
from sinkscope.report.check_page import check_page
from sinkscope.report.comparison_page import comparison_page
from sinkscope.report.compose import EPSILON, compose
from sinkscope.report.hazards_page import hazards_page
from sinkscope.report.observatory import observatory_page
from sinkscope.report.page import Page, write_page
from sinkscope.report.survey_page import survey_page
from sinkscope.report.trial_page import trial_page
from sinkscope.training import Run
from sinkscope.trials import Trial

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
