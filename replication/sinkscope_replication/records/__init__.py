"""The runs of the study, as rows (`sinkscope.experiments.read_rows`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sinkscope.experiments import Findings, with_rows

RECORDS = Path(__file__).parent / "runs.jsonl"
RELEASED = Path(__file__).parent / "released"  # what `sinkscope_replication.released` measured


@cache
def findings_of(question: str) -> Findings | None:
    """The runs of a question at scale `nano`, read once; None without any. The result is shared: do not change it."""
    from sinkscope_replication.questions import QUESTIONS  # which name this folder's file

    return with_rows(QUESTIONS[question], "nano", None)
