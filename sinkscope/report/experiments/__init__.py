"""Experiments to look at: verdicts, dose responses, curves, runs; as a page."""

from sinkscope.report.experiments.entry import Entry, Judged, entry, runs_of, unknown_entry
from sinkscope.report.experiments.page import experiment_page, experiments_page, made_by

__all__ = [
    "Entry",
    "Judged",
    "entry",
    "experiment_page",
    "experiments_page",
    "made_by",
    "runs_of",
    "unknown_entry",
]
