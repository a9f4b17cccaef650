"""How soon the recipe that the demonstration trains has a sink, by runs of the study."""

from __future__ import annotations

from tools.pages import ROOT
from tools.pages.stored import in_words

PAGE = "docs/reading_the_report.md"


def sentences() -> list[str]:
    """The page's sentences, in its order; none without the study's records, which are a package of their own."""
    if not (ROOT / "replication" / "README.md").is_file():
        return []
    from sinkscope_replication.questions.remedies import SINK
    from sinkscope_replication.records import findings_of

    findings = findings_of("remedies")
    runs = list(findings.runs["softmax"].values()) if findings else []
    if not runs or not all(map(SINK, runs)):
        raise ValueError("not each seed has a sink")
    steps = max(run.steps[-1] for run in runs)
    return [
        f"within {steps:,} steps in each of {in_words(len(runs))} seeds (in {SINK.at_least:.0f} % of the heads or "
        "more)",
    ]
