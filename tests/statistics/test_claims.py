"""Claims and verdicts: what each rule decides, also about NaN and too few seeds; values that survive JSON."""

from __future__ import annotations

import json
import math

import pytest
from scipy import stats

from sinkscope.errors import InputError
from sinkscope.statistics.claims import (
    COLUMNS,
    Above,
    Below,
    Claim,
    EachAbove,
    EachWithin,
    Evidence,
    SeedsAbove,
    Verdict,
    Within,
    markdown,
    tally,
)
from sinkscope.statistics.estimates import estimate


def claim(rule=None) -> Claim:
    return Claim("uniform", "A[t, i] = 1/t", "appendix B", rule or EachWithin(1e-6))


def found(*values: float) -> list[Evidence]:
    return [Evidence(f"case {index}", value) for index, value in enumerate(values)]


@pytest.mark.parametrize(
    ("rule", "values", "outcome", "residual"),
    [
        (EachWithin(1e-6), (1e-7, -1e-6), "supported", 1e-6),
        (EachWithin(1e-6), (1e-7, -2e-6), "refuted", 2e-6),
        (EachWithin(0), (0.0,), "supported", 0.0),
        (EachWithin(1e9), (0.0, math.inf), "refuted", math.inf),
        (EachAbove(0.1), (0.2, 0.3), "supported", 0.2),
        (EachAbove(0.1), (0.1, 0.3), "refuted", 0.1),
        (SeedsAbove(1), (2, 3, 4), "supported", 3),
        (SeedsAbove(1), (0, 1, 0.5), "refuted", 0.5),
        (SeedsAbove(1), (0, 2, 4), "inconclusive", 2),
        (SeedsAbove(1), (2, 3), "inconclusive", 2.5),
        (SeedsAbove(1, seeds=2), (2, 3), "supported", 2.5),
        (Above(1), (2, 2.2, 2.4), "supported", 2.2),
        (Above(1), (1.1, 2, 4), "inconclusive", 7.1 / 3),  # each is beyond, and the bound is not
        (Above(1), (0.4, 0.5, 0.6), "refuted", 0.5),
        (Above(1), (-3, -3.1, -3.2), "refuted", -3.1),
        (Above(1), (2, 2), "inconclusive", 2),
        (Above(1), (2, 2, 2, 2), "inconclusive", 2),  # nobody knows how far the next seed may be
        (Above(1), (2, 2, 2, 2, 2), "supported", 2),
        (Above(1.25, ratio=True), (0.5, 0.5, 0.5, 0.5, 0.5), "supported", 0.5),
        (Above(1.25, ratio=True), (0.2, 0.2, 0.2, 0.2, 0.2), "refuted", 0.2),
        (Below(1), (0, 0, 0), "inconclusive", 0),
        (Below(1), (0, -0.3, 0.1), "supported", -0.2 / 3),
        (Below(1), (2, 2.1, 2.2), "refuted", 2.1),
        (Below(1), (0, 2, 4), "inconclusive", 2),
        (Below(1), (0, 0), "inconclusive", 0),
        (Within(1), (-0.1, 0.1, 0.3), "supported", 0.1),
        (Within(1), (2.9, 3, 3.1), "refuted", 3),
        (Within(1), (-2.9, -3, -3.1), "refuted", -3),
        (Within(1), (-0.9, -1, -1.2), "inconclusive", -3.1 / 3),
        (Within(1), (-1.1, 1.1, 3), "inconclusive", 1),
        (Within(1), (0, 0), "inconclusive", 0),
        (Within(0), (0, 0, 0), "inconclusive", 0),
        (Within(0), (0, 0, 0, 0, 0), "supported", 0),
    ],
)
def test_a_rule_decides(rule, values, outcome, residual):
    verdict = claim(rule).judge(found(*values))
    assert (verdict.outcome, verdict.residual) == (outcome, pytest.approx(residual))


@pytest.mark.parametrize("rule", [EachWithin(1e9), EachAbove(-1e9)])
@pytest.mark.parametrize("values", [(math.nan,), (0.0, math.nan), (math.nan, 0.0)])
def test_nan_refutes_what_every_case_must_show(rule, values):
    verdict = claim(rule).judge(found(*values))
    assert verdict.outcome == "refuted"
    assert math.isnan(verdict.residual)


@pytest.mark.parametrize("rule", [SeedsAbove(0), Above(0), Below(9), Within(2)])
@pytest.mark.parametrize("known", [1, -5])  # where one seed alone would leave the others agreed
def test_a_run_that_diverged_decides_nothing(rule, known):
    assert claim(rule).judge(found(known, math.nan, known)).outcome == "inconclusive"


def test_the_spread_is_half_the_range_of_the_seeds():
    verdict = claim(SeedsAbove(0)).judge(found(1, 2, 5))
    assert verdict.spread == 2
    assert verdict.row[4] == "2.7 ± 2"


@pytest.mark.parametrize(
    ("rule", "values", "kind"),
    [
        (Above(1), (0.4, 0.5, 0.6), "smaller than asked"),
        (Above(1), (-3, -3.1, -3.2), "reversed"),
        (Above(0), (-3, -3.1, -3.2), "reversed"),
        (Above(-1), (-3, -3.1, -3.2), "smaller than asked"),
        (Below(1), (2, 2.1, 2.2), "larger than asked"),
        (Within(1), (2.9, 3, 3.1), "different"),
        (Above(1), (0, 1, 4), "undecided"),
        (Above(1), (9, 9), "too few seeds"),
        (Above(1), (2, 2.1, 2.2), ""),
    ],
)
def test_in_which_way_it_is_refuted_or_undecided(rule, values, kind):
    verdict = claim(rule).judge(found(*values))
    assert verdict.kind == kind
    assert verdict.said == (f"{verdict.outcome}: {kind}" if kind not in ("", "undecided") else verdict.outcome)


def test_a_verdict_has_its_interval_and_what_its_seeds_could_have_shown():
    verdict = claim(Above(1)).judge(found(1, 2, 3))  # t at 97.5 % and 95 % with two degrees of freedom
    assert verdict.interval == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)
    assert verdict.least == pytest.approx(1 + 2.91999 / math.sqrt(3), abs=1e-4)
    assert verdict.row[4] == "2 (-0.484 to 4.48)"
    assert claim(Above(1)).judge(found(*(verdict.least + shift + 1e-6 for shift in (-1, 0, 1)))).outcome == "supported"
    assert claim(Above(1)).judge(found(*(verdict.least + shift - 1e-6 for shift in (-1, 0, 1)))).outcome != "supported"
    ratio = claim(Above(1.25, ratio=True)).judge(found(*map(math.log, (1.9, 2.0, 2.1))))
    assert ratio.row[4].startswith("2 times (1.76 to 2.26)")


def test_p_values_are_those_of_student_s_tests():
    values = (1.0, 2.0, 3.5)

    def p(limit: float, side: str) -> float:
        return stats.ttest_1samp(values, limit, alternative=side).pvalue

    assert claim(Above(1)).judge(found(*values)).p == pytest.approx(p(1, "greater"))
    assert claim(Below(4)).judge(found(*values)).p == pytest.approx(p(4, "less"))
    assert claim(Within(3)).judge(found(*values)).p == pytest.approx(max(p(3, "less"), p(-3, "greater")))
    assert claim(Within(3)).judge(found(*(-value for value in values))).p == pytest.approx(p(3, "less"))


@pytest.mark.parametrize("rule", [Above(0), Below(9), Within(9)])
def test_the_smaller_of_two_samples_has_to_have_enough_seeds(rule):
    """However many the other has: two values with an interval of their own, which would do."""
    many, few = [5.0, 5.01, 4.99, 5.0], [1.0, 1.01]
    judged = rule.weigh(estimate([(1.0, many), (-1.0, few)]))
    assert (judged.outcome, judged.kind, judged.n) == ("inconclusive", "too few seeds", (4, 2))
    assert rule.weigh(estimate([(1.0, many), (-1.0, [*few, 0.99])])).outcome == "supported"


def test_the_largest_effect_that_could_be_shown_below_a_limit():
    least = claim(Below(4)).judge(found(1, 2, 3)).least
    assert least == pytest.approx(4 - 2.91999 / math.sqrt(3), abs=1e-4)
    for beside, outcome in ((-1e-6, "supported"), (1e-6, "inconclusive")):
        assert claim(Below(4)).judge(found(*(least + shift + beside for shift in (-1, 0, 1)))).outcome == outcome


def test_a_refuted_claim_names_its_worst_case():
    assert claim().judge(found(0.0, 3.0, 1.0)).reason == "case 1: 3"
    assert claim(EachAbove(2)).judge(found(5.0, 1.0)).reason == "case 1: 1"


def test_without_numbers_it_was_not_run():
    verdict = claim().judge([])
    assert (verdict.outcome, verdict.residual, verdict.evidence) == ("not run at this scale", None, ())
    assert claim().not_run("needs 60m").row[-1] == "not run at this scale (needs 60m)"


@pytest.mark.parametrize(
    "verdict",
    [
        claim().judge(found(1e-9, 0.1 + 0.2)),
        claim(EachAbove(0.5)).judge(found(math.inf)),
        claim(SeedsAbove(0.5)).judge(found(1, 2, 3)),
        claim(Above(0.5)).judge(found(1, 2, 3)),
        claim(Above(1.5, ratio=True)).judge(found(1, 2)),
        claim(Below(0.5)).judge(found(1, 2, 3)),
        claim(Within(0.5)).judge(found(1, 2, 3)),
        claim().not_run("too large"),
    ],
    ids=lambda verdict: f"{verdict.claim.rule.kind} {verdict.outcome}",
)
def test_a_verdict_survives_json(verdict):
    text = json.dumps(verdict.to_dict(), allow_nan=False)
    assert Verdict.from_dict(json.loads(text)) == verdict


def test_nan_survives_json():
    again = Verdict.from_dict(json.loads(json.dumps(claim().judge(found(math.nan)).to_dict(), allow_nan=False)))
    assert math.isnan(again.evidence[0].value)


def test_verdicts_are_values():
    assert len({claim().judge(found(0.0)), claim().judge(found(0.0)), claim().judge(found(1.0))}) == 2
    with pytest.raises(AttributeError):
        claim().name = "other"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"outcome": "proved"}, "outcome"),
        ({"residuum": 1}, "residuum"),
        ({"claim": {"name": "x", "statement": "y", "source": "z", "rule": {"kind": "each_near"}}}, "claim.rule"),
    ],
)
def test_a_wrong_record_is_refused_in_a_line(change, told):
    with pytest.raises(InputError, match=told) as raised:
        Verdict.from_dict({**claim().judge(found(0.0)).to_dict(), **change})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EachWithin(-1),
        lambda: EachAbove(math.nan),
        lambda: SeedsAbove(0, seeds=0),
        lambda: Above(0, seeds=1),
        lambda: Below(math.inf),
        lambda: Within(-1),
        lambda: Within(1, seeds=1),
    ],
)
def test_an_impossible_rule_fails_where_it_is_written(make):
    with pytest.raises(ValueError, match="validation error"):
        make()


def test_a_claim_without_words_is_refused():
    with pytest.raises(ValueError, match="at least 1 character"):
        Claim("name", "statement", " ", EachWithin(0))


def test_the_table_has_a_row_for_each_verdict_and_no_broken_cell():
    odd = Claim("odd", "a | b\nc", "X", EachWithin(1))
    lines = markdown([claim().judge(found(2.0)), odd.not_run("")]).splitlines()
    assert len(lines) == 4
    assert lines[2] == "| uniform | A[t, i] = 1/t | appendix B | ≤ 1e-06 | 2 | 1 | refuted (case 0: 2) |"
    assert lines[3].count("|") - lines[3].count("\\|") == len(COLUMNS) + 1


def test_the_tally_counts_outcomes():
    assert tally([claim().judge(found(0.0)), claim().judge(found(1.0)), claim().judge(found(0.0))]) == (
        "2 supported, 1 refuted"
    )
    assert tally([]) == "no claims"


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        (EachWithin(1e-6), 1e-6),
        (EachAbove(-2), -2.0),
        (SeedsAbove(1, seeds=5), 1.0),
        (Above(1.25, ratio=True), 1.25),
        (Below(0.5), 0.5),
        (Within(0.05, seeds=4), 0.05),
    ],
)
def test_a_rule_has_the_one_number_that_it_asks_for(rule, asked):
    assert rule.asked == asked
    assert isinstance(rule.asked, float)
    assert f"{asked:g}" in str(rule)
