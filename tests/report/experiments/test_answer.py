"""The paragraph of an experiment: it changes with its verdicts, and says no more than they do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sinkscope.experiments import Findings, above, gap
from sinkscope.report.experiments import entry
from sinkscope.report.experiments.answer import paragraph
from tests.report.experiments.conftest import found, question, run


def runs(softmax: tuple[float, ...], sigmoid: tuple[float, ...]) -> Findings:
    values = {"softmax": softmax, "sigmoid": sigmoid}
    return found(**{label: {s: run(label, s, rate) for s, rate in enumerate(rates)} for label, rates in values.items()})


@pytest.mark.parametrize(
    ("softmax", "sigmoid", "begins"),
    [
        ((9, 10, 11), (1, 1, 1), "The primary claim holds: softmax has more by 3 points (we find 9"),
        ((1, 1, 1), (9, 10, 11), "is refuted, and the effect points the other way (we find −9"),
        ((2, 2.1, 2.2), (1, 1.1, 1), "is refuted, since the effect is smaller than it asks"),
        (
            (2, 9, 16),
            (1, 1, 1),
            "is undecided: we find 8 (−9.39 to 25.4), from 3 and 3 seeds, where > 3 is asked",
        ),
        ((9, 10), (1, 1), "has too few seeds to be judged: 2 and 2, where it asks for three"),
        ((9, 10), (), "has no runs that it could be judged on"),
    ],
)
def test_it_says_what_became_of_the_primary_claim(softmax, sigmoid, begins):
    assert begins in paragraph(entry(question(), runs(softmax, sigmoid)))


def test_exploratory_claims_are_told_or_counted():
    one = question().assertions[0]
    more = [above(margin, gap("sink_0", "softmax", "sigmoid"), f"m{margin}", f"It is {margin} more", "Table 6")
            for margin in (1, 2, 4, 5, 20, 8.5)]  # fmt: skip
    told = paragraph(entry(question(assertions=(one, *more)), runs((9, 10, 11), (1, 1, 1))))
    assert "Supported among the exploratory claims: it is 1 more, found 9" in told
    assert "; and 1 more." in told
    assert "Refuted among the exploratory claims: it is 20 more, found 9" in told
    assert "There is 1 exploratory claim undecided." in told
    assert paragraph(replace(entry(question(), None), claims=())) == ""


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("ReLU has less", "ReLU has less"),
        ("OrthoAdam helps", "OrthoAdam helps"),
        ("With SGD it has", "with SGD it has"),
    ],
)
def test_names_keep_their_capitals_amid_a_sentence(statement, told):
    one = replace(question().assertions[0], claim=replace(question().assertions[0].claim, statement=statement))
    assert f"that {told}, " in paragraph(entry(question(assertions=(one,)), None))
