"""Claims and verdicts: what each rule decides, compared with scipy; values that survive JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from sinkscope.errors import InputError
from sinkscope.statistics.claims import (
    COLUMNS,
    CaseValue,
    Claim,
    Count,
    EachAbove,
    EachWithin,
    ModelCount,
    Size,
    Verdict,
    markdown,
    none_bound,
    share_interval,
    tally,
)
from sinkscope.statistics.estimates import estimate


def claim(rule=None) -> Claim:
    return Claim("uniform", "A[t, i] = 1/t", "appendix B", rule or EachWithin(1e-6))


def cases(*values: float) -> list[CaseValue]:
    return [CaseValue(f"case {index}", value) for index, value in enumerate(values)]


@pytest.mark.parametrize(
    ("rule", "values", "grade", "value"),
    [
        (EachWithin(1e-6), (1e-7, -1e-6), "confirmed", 1e-6),
        (EachWithin(1e-6), (1e-7, -2e-6), "not seen", 2e-6),
        (EachWithin(0), (0.0,), "confirmed", 0.0),
        (EachWithin(1e9), (0.0, math.inf), "not seen", math.inf),
        (EachAbove(0.1), (0.2, 0.3), "confirmed", 0.2),
        (EachAbove(0.1), (0.1, 0.3), "not seen", 0.1),
    ],
)
def test_identities_are_decided_by_their_worst_case(rule, values, grade, value):
    verdict = claim(rule).judge(cases(*values))
    assert (verdict.grade, verdict.value) == (grade, pytest.approx(value))


@pytest.mark.parametrize("rule", [EachWithin(1e9), EachAbove(-1e9)])
@pytest.mark.parametrize("values", [(math.nan,), (0.0, math.nan), (math.nan, 0.0)])
def test_an_identity_does_not_hold_where_a_case_is_nan(rule, values):
    verdict = claim(rule).judge(cases(*values))
    assert verdict.grade == "not seen"
    assert math.isnan(verdict.value)


@pytest.mark.parametrize(
    ("first", "second", "grade"),
    [
        ((6, 6), (0, 6), "confirmed"),
        ((6, 6), (1, 6), "confirmed"),
        ((12, 12), (2, 6), "confirmed"),
        ((12, 12), (3, 6), "open"),
        ((0, 6), (6, 6), "not seen"),
        ((4, 6), (4, 6), "open"),
        ((3, 3), (0, 3), "open"),
    ],
)
def test_counts_of_two_variations_are_compared_by_fisher_s_test(first, second, grade):
    verdict = claim(Count()).judge((ModelCount(*first), ModelCount(*second)))
    (k, n), (other_k, other_n) = first, second
    assert (verdict.grade, verdict.k, verdict.n) == (grade, (k, other_k), (n, other_n))
    assert verdict.p == pytest.approx(stats.hypergeom.sf(k - 1, n + other_n, k + other_k, n))


def test_counts_of_fewer_models_than_asked_are_open():
    verdict = claim(Count(fewest=3)).judge((ModelCount(90, 90), ModelCount(0, 2)))
    assert (verdict.grade, verdict.p, verdict.reason) == ("open", None, "fewer than 3 models")


@pytest.mark.parametrize("k", range(0, 13, 2))
def test_a_share_has_the_exact_test_and_interval(k):
    verdict = claim(Count(0.5)).judge((ModelCount(k, 12),))
    assert verdict.p == pytest.approx(stats.binomtest(k, 12, 0.5, "greater").pvalue)
    low, high = (
        (stats.beta.ppf(0.025, k, 13 - k) if k else 0.0),
        (stats.beta.ppf(0.975, k + 1, 12 - k) if k < 12 else 1),
    )
    assert share_interval(ModelCount(k, 12)) == pytest.approx((low, high))
    assert verdict.grade == {0: "not seen", 12: "confirmed"}.get(k, "open")


def test_none_of_a_few_bounds_a_share_and_no_more():
    assert (none_bound(6), none_bound(12)) == (pytest.approx(0.393, abs=1e-3), pytest.approx(0.221, abs=1e-3))
    assert claim(Count()).judge((ModelCount(6, 6), ModelCount(0, 6))).found == "6 of 6 against 0 of 6 (below 39 %)"
    assert claim(Count(0.5)).judge((ModelCount(9, 10),)).found == "9 of 10 (55 to 100 %)"


def test_open_counts_say_how_many_models_would_decide():
    verdict = claim(Count()).judge((ModelCount(6, 6), ModelCount(3, 6)))
    n = verdict.decides_at
    assert 6 < n < 20
    decided = claim(Count()).judge((ModelCount(n, n), ModelCount(round(n / 2), n)))
    assert (decided.grade, decided.decides_at) == ("confirmed", None)
    assert claim(Count()).judge((ModelCount(n - 1, n - 1), ModelCount(round((n - 1) / 2), n - 1))).grade == "open"
    assert claim(Count()).judge((ModelCount(3, 6), ModelCount(3, 6))).decides_at is None
    assert claim(Count(fewest=20)).judge((ModelCount(6, 6), ModelCount(0, 6))).decides_at == 20
    unequal = claim(Count()).judge((ModelCount(30, 30), ModelCount(2, 3)))
    assert (unequal.grade, unequal.decides_at) == ("open", 30), "so many of one there are"
    assert f"decided by {n} models each at today's numbers" in verdict.graded


def sized(values, rule, other=None) -> Verdict:
    samples = [(1.0, values)] if other is None else [(1.0, values), (-1.0, other)]
    return claim(rule).judge(estimate(samples))


SPREAD = (-1.0, -0.6, -0.2, 0.2, 0.6, 1.0)


def around(mean: float, spread: float = 1.0) -> list[float]:
    return [mean + spread * each for each in SPREAD]


@pytest.mark.parametrize(
    ("rule", "values", "grade"),
    [
        (Size(1, symmetric=True), around(3), "confirmed"),
        (Size(1, symmetric=True), around(1.5), "open"),
        (Size(1, symmetric=True), around(-1), "not seen"),
        (Size(1), around(3), "open"),  # six models on a scale that may have a tail
        (Size(1, fewest=6), around(3), "confirmed"),
        (Size(1), around(3) + around(3), "confirmed"),
        (Size(1.25, ratio=True), around(0.5, 0.1), "confirmed"),  # log 1.25 = .22
        (Size(1.25, ratio=True), around(0.0, 0.1), "not seen"),
        (Size(1, "below", symmetric=True), around(-1), "confirmed"),
        (Size(1, "below", symmetric=True), around(3), "not seen"),
        (Size(1, "below", symmetric=True), around(0.9), "open"),
        (Size(2, "within", symmetric=True), around(0), "confirmed"),
        (Size(2, "within", symmetric=True), around(5), "not seen"),
        (Size(2, "within", symmetric=True), around(-5), "not seen"),
        (Size(2, "within", symmetric=True), around(1.5), "open"),
        (Size(1, symmetric=True), [3.0] * 6, "open"),  # an interval without width says nothing of the next model
        (Size(1, fewest=2), [3.0], "open"),
    ],
)
def test_a_size_is_decided_by_its_interval(rule, values, grade):
    assert sized(values, rule).grade == grade


def test_a_difference_has_welch_s_98_percent_interval():
    one, other = [*around(5), 9.0], around(1, 3.0)
    verdict = sized(one, Size(1, symmetric=True), other)
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.98)
    assert verdict.interval == pytest.approx((interval.low, interval.high))
    shifted = [each - 1 for each in one]
    assert verdict.p == pytest.approx(stats.ttest_ind(shifted, other, equal_var=False, alternative="greater").pvalue)
    assert verdict.n == (7, 6)


@pytest.mark.parametrize(
    "rule", [Size(1, symmetric=True), Size(1, "below", symmetric=True), Size(3, "within", fewest=6)]
)
def test_bounds_and_p_values_decide_alike(rule):
    draw = np.random.default_rng(3)
    grades = set()
    for mean in np.linspace(-6, 8, 60):
        verdict = sized(list(draw.normal(mean, 1.5, 7)), rule)
        grades.add(verdict.grade)
        assert (verdict.grade == "confirmed") == (verdict.p < 0.01)
    assert len(grades) == 3


def test_an_open_size_says_how_many_models_would_decide():
    verdict = sized(around(1.8), Size(1, symmetric=True))
    n = verdict.decides_at
    mean, deviation = 1.8, np.std(around(1.8), ddof=1)
    holds = [mean - stats.t.ppf(0.99, each - 1) * deviation / math.sqrt(each) > 1 for each in (n - 2, n + 1)]
    assert (verdict.grade, holds) == ("open", [False, True])
    many = sized(around(1.3), Size(1, symmetric=True)).decides_at
    enough = [stats.t.ppf(0.99, each - 1) * deviation / math.sqrt(each) < 0.3 for each in range(2, 200)].index(True) + 2
    assert enough > 30
    assert many == pytest.approx(enough, abs=2)
    assert sized(around(3), Size(1)).decides_at == 12, "on a scale that may have a tail"


@pytest.mark.parametrize(
    ("rule", "n", "can"),
    [
        (Count(), (6, 6), True),
        (Count(), (3, 3), False),  # 3 of 3 against 0 of 3 has p = .05
        (Count(), (13, 3), True),
        (Count(0.5), (6,), False),
        (Count(0.5), (7,), True),
        (Size(1), (6,), False),
        (Size(1, symmetric=True), (6, 12), True),
        (Size(1.25, ratio=True), (5, 12), False),
    ],
)
def test_whether_so_many_models_can_decide(rule, n, can):
    assert rule.can_decide(*n) is can


def test_numbers_for_people():
    assert sized(around(3), Size(1, symmetric=True)).found == "3 (1.97 to 4.03)"
    assert sized(around(math.log(2), 0.1), Size(1.25, ratio=True)).found == "2 times (1.8 to 2.22)"
    assert claim().open("why").found == "–"
    assert claim().open("no runs").graded == "open (no runs)"
    assert tally([claim().open("x"), claim().judge(cases(0.0)), claim().open("y")]) == "1 confirmed, 2 open"
    assert tally([]) == "no claims"


EVERY = [
    claim().judge(cases(0.0, math.nan)),
    claim(Count()).judge((ModelCount(6, 6), ModelCount(3, 6)), "a reason", cases(1.0)),
    claim(Count(0.5)).judge((ModelCount(9, 10),)),
    sized(around(2), Size(1.25, ratio=True)),
    claim().open("no runs"),
]


@pytest.mark.parametrize("verdict", EVERY, ids=lambda verdict: str(verdict.claim.rule))
def test_a_verdict_survives_json(verdict):
    again = Verdict.from_dict(json.loads(json.dumps(verdict.to_dict(), allow_nan=False)))
    assert repr(again) == repr(verdict)
    assert again.row == verdict.row


def test_damaged_data_is_one_line():
    data = claim().open("x").to_dict()
    with pytest.raises(InputError, match=r"^verdict: grade: ") as error:
        Verdict.from_dict(data | {"grade": "perhaps"})
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="unexpected"):
        Verdict.from_dict(data | {"unexpected": 1})


def test_verdicts_by_the_earlier_rules_are_read():
    """Identities keep what they found; what older rules decided over seeds is open today."""
    whole = {"name": "n", "statement": "s", "source": "x"}
    identity = {"claim": {**whole, "rule": {"kind": "each_within", "tolerance": 1e-6}}, "outcome": "refuted"}
    identity |= {"residual": 0.5, "spread": 0.0, "evidence": [], "reason": "here: .5", "kind": ""}
    assert Verdict.from_dict(identity).grade == "not seen"
    assert Verdict.from_dict(identity | {"outcome": "supported"}).grade == "confirmed"
    rule = {"kind": "above", "margin": 3.0, "ratio": False, "seeds": 3}
    seeds = Verdict.from_dict(identity | {"claim": {**whole, "rule": rule}, "outcome": "supported", "n": [3]})
    assert (seeds.grade, seeds.value, str(seeds.claim.rule)) == ("open", 0.5, "> 3")
    assert "supported by earlier rules" in seeds.reason


def test_the_table_has_one_row_per_claim():
    lines = markdown([Claim("a|b", "s", "x", EachWithin(0)).judge(cases(0.0))]).splitlines()
    assert len(lines) == 3
    assert lines[0] == f"| {' | '.join(COLUMNS)} |"
    assert lines[2].startswith("| a\\|b | s | x |")


@pytest.mark.parametrize("part", ["name", "statement", "source"])
def test_a_claim_is_whole(part):
    parts = {"name": "n", "statement": "s", "source": "x", "rule": EachWithin(0)}
    with pytest.raises(ValueError, match=part):
        Claim(**parts | {part: " "})
