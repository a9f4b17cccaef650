"""A check: a claim, and how to find the numbers that decide it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sinkscope.statistics.claims import CaseValue, Claim, EachWithin, Rule, Verdict

EXACT = EachWithin(0)
ROUNDING = EachWithin(1e-12)  # float64, sums of up to some hundred terms
STORED = EachWithin(1e-6)  # measurements are kept in fp32, and the numbers that they are compared with have six digits


@dataclass(frozen=True)
class Check:
    """A claim and a function that finds its evidence; `run` gives the verdict.

    The function's subjects (a model's builder, an operation) are its parameters, so that a wrong one can be planted:
    `replace(check, evidence=lambda: weights(build=broken)).run()` must not hold.
    """

    claim: Claim
    evidence: Callable[[], Iterable[CaseValue]]

    def run(self) -> Verdict:
        """Find the evidence and judge it."""
        return self.claim.judge(self.evidence())


def check(name: str, statement: str, source: str, rule: Rule, evidence: Callable[[], Iterable[CaseValue]]) -> Check:
    """A check from its parts."""
    return Check(Claim(name, statement, source, rule), evidence)
