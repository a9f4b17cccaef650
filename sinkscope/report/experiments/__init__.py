"""The page of experiments: verdicts, dose responses, curves, runs."""

from sinkscope.report.experiments.entry import ExperimentEntry, Judged, entry, runs_of, unknown_entry
from sinkscope.report.experiments.page import experiment_page, experiments_page, made_by

__all__ = [
    "ExperimentEntry",
    "Judged",
    "entry",
    "experiment_page",
    "experiments_page",
    "made_by",
    "runs_of",
    "unknown_entry",
]
