"""What the page says of every question."""

from sinkscope.experiments import verdicts
from sinkscope.report.experiments import entry, paragraph
from sinkscope_replication.questions import QUESTIONS


def test_a_primary_claim_is_told_for_every_question():
    for asked in QUESTIONS.values():
        told = paragraph(entry(asked, None))
        assert told.startswith("The primary claim, that "), asked.name
        assert verdicts(asked, None)[0].reason in told
