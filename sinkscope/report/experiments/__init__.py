"""The page of experiments: verdicts, dose responses, curves, runs."""

from sinkscope.report.experiments.entry import ExperimentEntry, Judged, entry, unknown_entry

__all__ = ["ExperimentEntry", "Judged", "entry", "unknown_entry"]
