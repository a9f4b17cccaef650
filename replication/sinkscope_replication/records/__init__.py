"""The runs of the study, as rows (`sinkscope.experiments.read_rows`)."""

from pathlib import Path

RECORDS = Path(__file__).parent / "runs.jsonl"
