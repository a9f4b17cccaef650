"""The paper's statements: which claims bear on each, and that no claim of the paper is without one."""

from __future__ import annotations

import re

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import verdicts
from sinkscope.statistics.claims import Above, Claim, Verdict
from sinkscope.statistics.estimates import estimate
from sinkscope_replication.paper import STATEMENTS, Said, cites, parts, unanswered
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.theory import CHECKS

NOT_RUN = {question.name: verdicts(question, None) for question in QUESTIONS.values()}
YES, NO = (5.0, 5.1, 5.2), (-5.0, -5.1, -5.2)


def verdict(name: str, *values: float, source: str = "Gu et al. 2025, Table 4") -> Verdict:
    """A verdict on "> 1" from the values of so many seeds; not run without any."""
    claim = Claim(name, f"{name} is so", source, Above(1.0))
    return claim.judge((), over=estimate([(1.0, values)])) if values else claim.not_run("no run of 'it'")


def said(*claims: str, every: bool = False) -> Said:
    return Said("It is so", "Table 4", "3", claims, every)


def test_the_claims_that_bear_on_a_statement_come_in_its_order():
    judged = {"q": [verdict("by mass", *YES), verdict("by rate"), verdict("c")], "r": [verdict("by rate", *NO)]}
    found = parts(said("r/by *", "q/by rate", "q/*"), judged)
    assert [(part.question, part.verdict.claim.name) for part in found] == [
        ("r", "by rate"),
        ("q", "by rate"),
        ("q", "by mass"),
        ("q", "c"),
    ]
    assert [part.primary for part in found] == [True, False, True, False]
    assert parts(said("nowhere/*"), judged) == []


@pytest.mark.parametrize("more", [{}, {"claims": ("q/a",), "beyond": "too large"}, {"theory": "a", "beyond": "b"}])
def test_a_statement_is_answered_in_one_way(more):
    with pytest.raises(InputError, match="'It is so': needs either"):
        Said("It is so", "Table 4", **more)


def test_a_claim_that_is_not_there_is_named():
    with pytest.raises(InputError, match="experiment 'q' has no claim 'b'"):
        parts(said("q/b"), {"q": [verdict("a")]})


def test_statements_name_claims_and_checks_that_there_are():
    checks = {check.claim.name for check in CHECKS}
    for part, group in STATEMENTS.items():
        for each in group:
            assert each.theory in {"", *checks}, (part, each)
            assert parts(each, NOT_RUN) or each.theory or each.beyond, (part, each)  # raises for a claim that is gone
            assert {pattern.partition("/")[0] for pattern in each.claims} <= set(QUESTIONS), (part, each)


def test_every_claim_of_the_paper_bears_on_a_statement():
    left = [(part.question, part.verdict.claim.name) for part in unanswered(STATEMENTS, NOT_RUN)]
    on_text = [each for each in left if not each[0].startswith(("backcopy", "trigger"))]
    assert on_text == [], "name them in a statement of sinkscope_replication/paper"


def test_a_claim_that_no_statement_names_is_noticed():
    judged = {"q": [verdict("a"), verdict("b"), verdict("c", source="our question; Gu et al. 2025")]}
    left = unanswered({"part": [said("q/a")]}, judged)
    assert [part.verdict.claim.name for part in left] == ["b"]
    assert cites(verdict("a", source="slides of Gu et al. 2025: 2.69"))
    assert not cites(verdict("a", source="Guo et al. 2024a"))


def test_statements_stand_alone_and_once():
    every = [each for group in STATEMENTS.values() for each in group]
    assert len({each.says for each in every}) == len(every)
    for each in every:
        assert each.says[0].isupper() or each.says.startswith("p-"), each.says
        assert not each.says.endswith("."), each.says


def test_published_numbers_are_those_of_the_questions():
    """Each number that a statement quotes stands among what its questions say of the paper."""
    for group in STATEMENTS.values():
        for each in group:
            if not each.claims:
                continue
            questions = [QUESTIONS[pattern.partition("/")[0]] for pattern in each.claims]
            known = {round(value, 2) for q in questions for v in q.variations for value in v.published.values()}
            words = " ".join(a.claim.source for q in questions for a in q.assertions)
            known |= {float(number) for number in re.findall(r"\d+\.\d+", words)}
            quoted = {float(number) for number in re.findall(r"\d+\.\d+", each.published)}
            assert quoted <= known, (each.says, quoted - known)
