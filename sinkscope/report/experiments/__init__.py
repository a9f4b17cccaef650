"""Experiments to look at: verdicts, dose responses, curves, runs; as a page, and as the page of findings in docs."""

from sinkscope.report.experiments.entry import Entry, entry, unknown_entry
from sinkscope.report.experiments.page import experiment_page, experiments_page

__all__ = ["Entry", "entry", "experiment_page", "experiments_page", "unknown_entry"]
