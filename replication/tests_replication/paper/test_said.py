"""The paper's statements: which claim answers each, and that no claim of the paper is without one."""

from __future__ import annotations

import math
import re

import pytest

from sinkscope.claims import Above, Claim, Verdict
from sinkscope.errors import InputError
from sinkscope.experiments import QUESTIONS, STATEMENTS, is_synthetic, verdicts
from sinkscope.intervals import estimate
from sinkscope_replication.paper import Said, answer, answers, cites, unanswered
from sinkscope_replication.paper.said import FADES, LATE
from sinkscope_replication.theory import CHECKS

NOT_RUN = {question.name: verdicts(question, None) for question in QUESTIONS.values()}
YES, NO, OPEN = (5.0, 5.1, 5.2), (-5.0, -5.1, -5.2), (-5.0, 0.0, 8.0)


def verdict(name: str, *values: float, source: str = "Gu et al. 2025, Table 4") -> Verdict:
    """A verdict on "> 1" from the values of so many seeds; not run without any."""
    claim = Claim(name, f"{name} is so", source, Above(1.0))
    return claim.judge((), over=estimate([(1.0, values)])) if values else claim.not_run("no run of 'it'")


def said(*claims: str, every: bool = False) -> Said:
    return Said("It is so", "Table 4", "3", claims, every)


@pytest.mark.parametrize(
    ("mass", "rate", "by", "words"),
    [
        (YES, NO, "by mass", "supported"),
        (NO, YES, "by mass", "refuted: reversed"),
        (OPEN, YES, "by mass", "inconclusive"),
        (YES[:2], NO, "by rate", "refuted: reversed"),
        (YES[:2], YES, "by rate", "supported"),
        ((), YES, "by rate", "supported"),
        ((), YES[:2], "by rate", "inconclusive: too few seeds"),
        (YES[:2], (), "by mass", "inconclusive: too few seeds"),
        ((), (), "by mass", "not run at this scale"),
    ],
)
def test_of_several_measures_the_first_with_enough_seeds_answers_whatever_it_says(mass, rate, by, words):
    judged = {"q": [verdict("by mass", *mass), verdict("by rate", *rate)]}
    found = answer(said("q/by *"), judged)
    assert (found.by.verdict.claim.name, found.words) == (by, words)
    assert found.by.primary == (by == "by mass")
    assert len(found.others) == 1
    assert found.decided == words.startswith(("supported", "refuted"))
    assert (found.why == "no run of 'it'") == (words == "not run at this scale")


@pytest.mark.parametrize(
    ("each", "words"),
    [
        ((YES, YES, YES), "supported"),
        ((YES, OPEN, YES), "inconclusive"),
        ((YES, OPEN, ()), "not run at this scale"),
        ((YES, YES, YES[:2]), "inconclusive: too few seeds"),
        (((), OPEN, NO), "refuted: reversed"),
    ],
)
def test_of_parts_that_must_all_hold_the_least_favorable_answers(each, words):
    judged = {"q": [verdict(f"part {index}", *values) for index, values in enumerate(each)]}
    assert answer(said("q/part *", every=True), judged).words == words


def test_all_parts_together_are_called_true_no_more_often_than_one():
    """An intersection–union test: its size is that of its parts, with no correction, whatever hangs together."""
    judged = {"q": [verdict("a", *YES), verdict("b", 0.9, 1.2, 1.5), verdict("c", *YES)]}
    found = answer(said("q/*", every=True), judged)
    assert found.by.verdict.p == max(part.p for part in judged["q"]) > 0.05
    assert not found.decided


def test_what_else_bears_on_it_is_counted():
    judged = {"q": [verdict("a", *YES), verdict("b", *NO), verdict("c", *OPEN), verdict("d"), verdict("e", 1.0)]}
    assert answer(said("q/*"), judged).beside == "1 refuted, 1 inconclusive"
    assert answer(said("q/a"), judged).beside == ""


def test_what_no_run_decides_says_what_does():
    by_theory = answer(Said("It is so", "appendix", theory="equal tokens stay equal"), {})
    assert (by_theory.words, by_theory.decided) == ("holds by theory", False)
    assert "sinkscope theory" in by_theory.why
    beyond = answer(Said("It is so", "Table 8", beyond="too large"), {})
    assert (beyond.words, beyond.why, beyond.decided) == ("beyond this hardware", "too large", False)
    assert beyond.to_dict()["by"] is None


def test_a_claim_of_later_and_a_primary_one_that_fades_weaken_what_they_answer():
    """Each of twenty primary claims has p = 0.018, which does not outlast their number; others are not asked."""
    judged = {f"q{n}": [verdict("a", 3.0, 4.0, 5.0), verdict("b", 3.0, 4.0, 5.0)] for n in range(20)}
    wanted = {"part": [said("q0/b"), said("q1/b"), said("q2/a")]}
    plain, late, fading = answers(wanted, judged, late={("q1", "b")})["part"]
    assert [each.words for each in (plain, late, fading)] == ["supported"] * 3
    assert (plain.why, late.why, fading.why) == ("", LATE, FADES)
    (alone,) = answers({"part": [said("q2/a")]}, {"q2": judged["q2"]})["part"]
    assert alone.caveats == ()


@pytest.mark.parametrize("more", [{}, {"claims": ("q/a",), "beyond": "too large"}, {"theory": "a", "beyond": "b"}])
def test_a_statement_is_answered_in_one_way(more):
    with pytest.raises(InputError, match="'It is so': needs either"):
        Said("It is so", "Table 4", **more)


def test_a_claim_that_is_not_there_is_named():
    with pytest.raises(InputError, match="experiment 'q' has no claim 'b'"):
        answer(said("q/b"), {"q": [verdict("a")]})


def test_statements_name_claims_and_checks_that_there_are():
    found = answers(STATEMENTS, NOT_RUN)  # raises for a claim that is gone
    checks = {check.claim.name for check in CHECKS}
    for part, group in found.items():
        for each in group:
            assert each.said.theory in {"", *checks}, (part, each.said)
            assert each.by is not None or each.said.theory or each.said.beyond, (part, each.said)
            named = [pattern.partition("/")[0] for pattern in each.said.claims]
            assert set(named) <= set(QUESTIONS), (part, each.said)


def test_every_claim_of_the_paper_bears_on_a_statement():
    left = unanswered(answers(STATEMENTS, NOT_RUN), NOT_RUN)
    on_text = [(part.question, part.verdict.claim.name) for part in left if not is_synthetic(QUESTIONS[part.question])]
    assert on_text == [], "name them in a statement of sinkscope/experiments/paper"


def test_a_claim_that_no_statement_names_is_noticed():
    judged = {"q": [verdict("a"), verdict("b"), verdict("c", source="our question; Gu et al. 2025")]}
    left = unanswered({"part": [answer(said("q/a"), judged)]}, judged)
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


def test_synthetic_tasks_are_told_apart():
    assert [name for name, question in QUESTIONS.items() if is_synthetic(question)] == [
        *(name for name in QUESTIONS if name.startswith("backcopy")),
        "trigger-conditional",
    ]


def test_a_statement_is_plain_data():
    judged = {"q": [verdict("a", *YES), verdict("b")]}
    told = answer(said("q/*"), judged).to_dict()
    assert told["by"] == {"experiment": "q", "claim": "a", "primary": True}
    assert told["others"] == [{"experiment": "q", "claim": "b"}]
    assert (told["says"], told["verdict"], told["why"]) == ("It is so", "supported", "")
    assert not math.isnan(judged["q"][0].residual)
