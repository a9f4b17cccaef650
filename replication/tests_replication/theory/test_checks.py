"""Every claim holds and was stated in full."""

from __future__ import annotations

import math

import pytest
import torch

from sinkscope.statistics.claims import CaseValue, Claim, EachWithin
from sinkscope_replication.theory import CHECKS, Check, by_topic, failing, run_checks


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.claim.name)
def test_it_holds(check):
    verdict = check.run()
    assert verdict.grade == "confirmed", verdict.reason
    assert all(math.isfinite(found.value) for found in verdict.evidence)


def test_every_claim_is_one_of_its_kind():
    names = [each.claim.name for each in CHECKS]
    assert len(set(names)) == len(names)
    assert len({each.claim.statement for each in CHECKS}) == len(names)


SOURCES = (
    *(f"Gu et al. 2025, appendix B, proposition {number}" for number in (1, 2, 3, 4)),
    *(
        f"Gu et al. 2025, {place}"
        for place in ("Table 4", "Table 5", "Table 7", "Table 13", "section 7", "equations 32–42")
    ),
    "Barbero et al. 2025",
    "Dong et al. 2021",
    "Katharopoulos et al. 2020",
    "Miller 2023",
    "Zhai et al. 2023, Theorem 3.1",
)


@pytest.mark.parametrize("source", SOURCES)
def test_a_place_in_the_literature_has_a_claim(source):
    assert any(source in each.claim.source for each in CHECKS)


def toy(name: str, value: float) -> Check:
    return Check(Claim(name, f"{name} is zero", "X", EachWithin(0)), lambda: [CaseValue("here", value)])


def test_a_run_keeps_the_order():
    verdicts = run_checks([toy("one", 0.0), toy("two", 1.0)])
    assert [verdict.grade for verdict in verdicts] == ["confirmed", "not seen"]
    assert [verdict.claim.name for verdict in failing(verdicts)] == ["two"]


def test_a_run_gives_the_threads_back():
    before, seen = torch.get_num_threads(), []

    def evidence():
        seen.append(torch.get_num_threads())
        yield CaseValue("here", 0.0)

    torch.set_num_threads(2)
    try:
        run_checks([Check(toy("one", 0.0).claim, evidence)])
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_verdicts_stand_under_their_topic():
    found = by_topic({"first": [toy("one", 0.0)], "second": [toy("two", 1.0), toy("three", 0.0)]})
    assert {topic: [verdict.claim.name for verdict in group] for topic, group in found.items()} == {
        "first": ["one"],
        "second": ["two", "three"],
    }
