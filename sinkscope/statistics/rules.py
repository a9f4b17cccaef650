"""Evidence, and the rules by which numbers decide about a claim: bounds of every case, and intervals over seeds.

Every rule has the one number that it asks for, `asked`, in the units of the effect (of a ratio the ratio itself).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated

from sinkscope.statistics.estimates import Estimate, estimate

UNDECIDED, TOO_FEW = "undecided", "too few seeds"
AGREEING = 5  # seeds; where half of all runs say something else, five agree in 2⁻⁵ = 3 % of cases, four in 6 %
Outcome = Literal["supported", "refuted", "inconclusive", "not run at this scale"]

_STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="strings")  # JSON has no infinity; text round-trips
_Limit = Annotated[float, Field(allow_inf_nan=False)]


@validated(frozen=True, config=_STRICT)
class Evidence:
    """One number and where it was found: `Evidence("T = 64, seed 1", 3e-8)`."""

    case: str
    value: float


@dataclass(frozen=True)
class Judgment:
    """What a rule makes of the numbers. `residual` is the one that decides, `spread` how far replicates differ.

    Of an effect with an interval: `kind` says in which way it is refuted or undecided, `interval` is the two-sided 95 %
    one, `n` the sizes of its samples, `p` the one-sided p-value against the claim, and `least` the smallest effect that
    seeds which differ as much could have shown (of `Below` the largest, of `Within` the smallest tolerance).
    """

    outcome: Outcome
    residual: float
    spread: float = 0.0
    worst: Evidence | None = None
    kind: str = ""
    interval: tuple[float, float] | None = None
    n: tuple[int, ...] = ()
    p: float | None = None
    least: float | None = None


@validated(frozen=True, config=_STRICT)
class EachWithin:
    """|x| ≤ tolerance in every case: identities up to rounding, and bounds by how far they are overstepped.

    The residual is the largest |x|. NaN is beyond every tolerance.
    """

    tolerance: Annotated[_Limit, Field(ge=0)]
    kind: Literal["each_within"] = "each_within"

    @property
    def asked(self) -> float:
        return self.tolerance

    def __str__(self) -> str:
        return f"≤ {self.tolerance:g}"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        worst = max(evidence, key=lambda found: math.inf if math.isnan(found.value) else abs(found.value))
        residual = abs(worst.value)
        return Judgment("supported" if residual <= self.tolerance else "refuted", residual, worst=worst)


@validated(frozen=True, config=_STRICT)
class EachAbove:
    """x > margin in every case: differences that must be there. The residual is the smallest x."""

    margin: _Limit
    kind: Literal["each_above"] = "each_above"

    @property
    def asked(self) -> float:
        return self.margin

    def __str__(self) -> str:
        return f"> {self.margin:g}"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        worst = min(evidence, key=lambda found: -math.inf if math.isnan(found.value) else found.value)
        return Judgment("supported" if worst.value > self.margin else "refuted", worst.value, worst=worst)


@validated(frozen=True, config=_STRICT)
class SeedsAbove:
    """x > margin, where each number is the effect in one seed.

    Supported where all seeds exceed the margin, refuted where none does, inconclusive where they disagree, where there
    are fewer than `seeds`, and where one is NaN. The residual is their mean, the spread half the way from the smallest
    to the largest.
    """

    margin: _Limit
    seeds: Annotated[int, Field(ge=1)] = 3
    kind: Literal["seeds_above"] = "seeds_above"

    @property
    def asked(self) -> float:
        return self.margin

    def __str__(self) -> str:
        return f"> {self.margin:g} in {self.seeds} seeds"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        return _of_seeds(evidence, self.seeds, lambda value: value > self.margin)


@validated(frozen=True, config=_STRICT)
class Above:
    """An effect over seeds exceeds a margin, by its 95 % interval (Student's t; Welch's for a difference of runs).

    Supported where the one-sided 95 % bound lies beyond the margin. Refuted where the two-sided interval lies below it:
    "reversed" where it lies below 0 too, else "smaller than asked". Undecided otherwise, with "too few seeds" where a
    sample has fewer than `seeds`, or fewer than five and no spread: where three seeds agree on a position, or on a yes,
    the interval has no width, which says nothing of the next seed. With `ratio` the effect is a logarithm of a ratio,
    and so is compared with the logarithm of the margin.
    """

    margin: _Limit
    ratio: bool = False
    seeds: Annotated[int, Field(ge=2)] = 3
    kind: Literal["above"] = "above"

    @property
    def asked(self) -> float:
        return self.margin

    def __str__(self) -> str:
        return f"> {self.margin:g} times" if self.ratio else f"> {self.margin:g}"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        return self.weigh(_sample(evidence))

    def weigh(self, found: Estimate) -> Judgment:
        """The judgment on an effect and its interval."""
        limit = math.log(self.margin) if self.ratio else self.margin
        if unknown := _unknown(found, self.seeds):
            return unknown
        least, p = limit + found.bound(0.95) - found.mean, found.above(limit)
        if found.bound(0.05) > limit:
            return _decided("supported", "", found, p, least)
        if found.bound(0.975) <= limit:
            reversed_ = limit == 0 or (limit > 0 and found.bound(0.975) < 0)
            kind = "reversed" if reversed_ else "smaller than asked"
            return _decided("refuted", kind, found, p, least)
        return _decided("inconclusive", UNDECIDED, found, p, least)


@validated(frozen=True, config=_STRICT)
class Below:
    """An effect over seeds stays below a limit, by its 95 % interval.

    Supported and undecided as in `Above`, refuted ("larger than asked") where the two-sided interval lies above.
    """

    limit: _Limit
    seeds: Annotated[int, Field(ge=2)] = 3
    kind: Literal["below"] = "below"

    @property
    def asked(self) -> float:
        return self.limit

    def __str__(self) -> str:
        return f"< {self.limit:g}"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        return self.weigh(_sample(evidence))

    def weigh(self, found: Estimate) -> Judgment:
        """The judgment on an effect and its interval."""
        if unknown := _unknown(found, self.seeds):
            return unknown
        p, least = 1 - found.above(self.limit), self.limit - (found.bound(0.95) - found.mean)
        if found.bound(0.95) < self.limit:
            return _decided("supported", "", found, p, least)
        if found.bound(0.025) >= self.limit:
            return _decided("refuted", "larger than asked", found, p, least)
        return _decided("inconclusive", UNDECIDED, found, p, least)


@validated(frozen=True, config=_STRICT)
class Within:
    """An effect over seeds is zero within a tolerance, by two one-sided tests at 5 %.

    Supported where both one-sided 95 % bounds lie inside, refuted ("different") where the two-sided interval lies
    outside, undecided otherwise.
    """

    tolerance: Annotated[_Limit, Field(ge=0)]
    seeds: Annotated[int, Field(ge=2)] = 3
    kind: Literal["within"] = "within"

    @property
    def asked(self) -> float:
        return self.tolerance

    def __str__(self) -> str:
        return f"|x| ≤ {self.tolerance:g}"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        return self.weigh(_sample(evidence))

    def weigh(self, found: Estimate) -> Judgment:
        """The judgment on an effect and its interval."""
        if unknown := _unknown(found, self.seeds):
            return unknown
        p = max(1 - found.above(self.tolerance), found.above(-self.tolerance))
        least = found.bound(0.95) - found.mean
        if found.bound(0.95) <= self.tolerance and found.bound(0.05) >= -self.tolerance:
            return _decided("supported", "", found, p, least)
        if found.bound(0.025) > self.tolerance or found.bound(0.975) < -self.tolerance:
            return _decided("refuted", "different", found, p, least)
        return _decided("inconclusive", UNDECIDED, found, p, least)


Rule = Annotated[EachWithin | EachAbove | SeedsAbove | Above | Below | Within, Field(discriminator="kind")]


def _of_seeds(evidence: Sequence[Evidence], seeds: int, holds: Callable[[float], bool]) -> Judgment:
    """All seeds or none: what at least `seeds` replicates agree on."""
    values = [found.value for found in evidence]
    mean, spread = math.fsum(values) / len(values), (max(values) - min(values)) / 2
    outcome: Outcome = "inconclusive"
    if len(values) >= seeds and not any(map(math.isnan, values)):
        held = [holds(value) for value in values]
        outcome = "supported" if all(held) else "inconclusive" if any(held) else "refuted"
    return Judgment(outcome, mean, spread)


def _sample(evidence: Sequence[Evidence]) -> Estimate:
    return estimate([(1.0, [found.value for found in evidence])])


def _unknown(found: Estimate, seeds: int) -> Judgment | None:
    """Where nothing can be told: a run that diverged, or too few seeds, also of those that all say the same."""
    if min(found.n) < (AGREEING if found.error == 0 else seeds):
        return _decided("inconclusive", TOO_FEW, found, None, None)
    return _decided("inconclusive", UNDECIDED, found, None, None) if math.isnan(found.mean) else None


def _decided(outcome: Outcome, kind: str, found: Estimate, p: float | None, least: float | None) -> Judgment:
    known = not math.isnan(found.error) and not math.isnan(found.mean)
    interval = (found.bound(0.025), found.bound(0.975)) if known else None
    return Judgment(outcome, found.mean, found.error if known else 0.0, None, kind, interval, found.n, p, least)
