"""Claims fixed before their runs, the rules that decide them, and the grades that follow.

The unit is a trained model: heads, windows and texts of one model are never counted as independent. Count claims say
how many models have something ("13 of 13 against 1 of 8") and are decided by exact tests. Size claims say by how much
(mass, loss, norms) and are decided by an interval against a margin. Every rule is one-sided at 1 %, for each claim by
itself: a grade does not change when another claim is added.

    claim = Claim("fewer", "fewer models have a sink with sigmoid", "Gu et al. 2025, Table 6", Count())
    claim.judge((ModelCount(13, 13), ModelCount(1, 8))).grade  # "confirmed"

Identities and bounds, which need no models, are decided by their worst case (`EachWithin`, `EachAbove`).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from sinkscope.errors import InputError
from sinkscope.statistics.estimates import Estimate

__all__ = [
    "BOUND",
    "COLUMNS",
    "GRADES",
    "LEVEL",
    "CaseValue",
    "Claim",
    "Count",
    "EachAbove",
    "EachWithin",
    "Grade",
    "Judgment",
    "ModelCount",
    "Rule",
    "Size",
    "Verdict",
    "cells",
    "markdown",
    "none_bound",
    "share_interval",
    "tally",
]

Grade = Literal["confirmed", "seen", "not seen", "open"]
GRADES: tuple[Grade, ...] = get_args(Grade)
COLUMNS = ("claim", "statement", "source", "asked", "found", "cases", "grade")
LEVEL = 0.01  # one-sided, for each claim
BOUND = 0.95  # of the interval, or the bound, that is printed with a share
MOST = 500  # models per variation; no claim is said to need more

_STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="strings")  # JSON has no infinity; text round-trips
_Limit = Annotated[float, Field(allow_inf_nan=False)]
_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


@validated(frozen=True, config=_STRICT)
class CaseValue:
    """One number and the case it belongs to: `CaseValue("T = 64, seed 1", 3e-8)`."""

    case: str
    value: float


class ModelCount(NamedTuple):
    """How many of n models have something."""

    k: int
    n: int

    @property
    def share(self) -> float:
        return self.k / self.n if self.n else math.nan

    def __str__(self) -> str:
        return f"{self.k} of {self.n}"


@dataclass(frozen=True)
class Judgment:
    """What a rule makes of numbers.

    `value` is the effect, the (difference of) shares, or the worst case; `interval` its 98 % interval for a size, whose
    ends are the bounds that decide, and the 95 % Clopper-Pearson interval for one share. `n`: models per variation,
    `k`: how many of them have it. `p`: the one-sided p-value against the claim. `decides_at`: how many models per
    variation would decide if shares, means and spreads stayed what they are; None where it is decided, or none would.
    """

    grade: Grade
    value: float = math.nan
    interval: tuple[float, float] | None = None
    n: tuple[int, ...] = ()
    k: tuple[int, ...] = ()
    p: float | None = None
    decides_at: int | None = None
    reason: str = ""


@validated(frozen=True, config=_STRICT)
class EachWithin:
    """|x| ≤ tolerance in every case, NaN excluded: identities up to rounding. The value is the largest |x|."""

    tolerance: Annotated[_Limit, Field(ge=0)]
    kind: Literal["each_within"] = "each_within"

    def __str__(self) -> str:
        return f"≤ {self.tolerance:g}"

    def judge(self, cases: Sequence[CaseValue]) -> Judgment:
        # NaN is the worst case, and no comparison with it holds.
        worst = max(cases, key=lambda each: math.inf if math.isnan(each.value) else abs(each.value))
        return _of_worst(abs(worst.value) <= self.tolerance, worst, abs(worst.value))


@validated(frozen=True, config=_STRICT)
class EachAbove:
    """x > margin in every case, NaN excluded: differences that must exist. The value is the smallest x."""

    margin: _Limit
    kind: Literal["each_above"] = "each_above"

    def __str__(self) -> str:
        return f"> {self.margin:g}"

    def judge(self, cases: Sequence[CaseValue]) -> Judgment:
        worst = min(cases, key=lambda each: -math.inf if math.isnan(each.value) else each.value)
        return _of_worst(worst.value > self.margin, worst, worst.value)


def _of_worst(holds: bool, worst: CaseValue, value: float) -> Judgment:
    return Judgment("confirmed", value) if holds else Judgment("not seen", value, reason=f"{worst.case}: {value:.3g}")


@validated(frozen=True, config=_STRICT)
class Count:
    """How many models have something: of one variation against a share, or of one variation against another.

    Against a share (0 to 1): the exact binomial test of "at most that share". Without one: Fisher's exact test, more in
    the first variation than in the second. Confirmed where p ≤ .01, not seen where the opposite has p ≤ .01, open
    otherwise and with fewer than `fewest` models in a variation. 6 of 6 against 0 of 6 has p = .001, 12 of 12 against
    2 of 6 .005; 0 of 6 alone bounds the share at 39 % (95 %), so "none" is asked as "fewer than".
    """

    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    fewest: Annotated[int, Field(ge=2)] = 3
    kind: Literal["count"] = "count"

    def __str__(self) -> str:
        return "more models" if self.share is None else f"more than {100 * self.share:g} % of models"

    def p_values(self, counts: Sequence[ModelCount]) -> tuple[float, float]:
        """One-sided p-values against the claim, and against its opposite."""
        # From scipy.special: scipy.stats has both tests, and takes longer to load than all claims take to judge.
        from scipy.special import bdtr, bdtrc

        if self.share is None:
            first, second = counts
            return fisher(first, second), fisher(second, first)
        ((k, n),) = counts
        # P(X ≥ k) and P(X ≤ k): bdtrc(k − 1, …) is P(X > k − 1).
        return float(bdtrc(k - 1, n, self.share)), float(bdtr(k, n, self.share))

    def judge(self, counts: Sequence[ModelCount]) -> Judgment:
        n, k = tuple(each.n for each in counts), tuple(each.k for each in counts)
        value = counts[0].share - (counts[1].share if self.share is None else 0.0)
        if min(n) < self.fewest:
            few = f"fewer than {self.fewest} models"
            return Judgment("open", value, None, n, k, None, self._decides_at(counts) if min(n) else None, few)
        more, less = self.p_values(counts)
        grade: Grade = "confirmed" if more <= LEVEL else "not seen" if less <= LEVEL else "open"
        interval = share_interval(counts[0]) if self.share is not None else None
        return Judgment(grade, value, interval, n, k, more, self._decides_at(counts) if grade == "open" else None)

    def can_decide(self, *n: int) -> bool:
        """Whether so many models per variation can decide: all of the first, and none of the second."""
        best = tuple(ModelCount(0 if place else each, each) for place, each in enumerate(n))
        return min(n) >= self.fewest and self.p_values(best)[0] <= LEVEL

    def can_still_decide(self, counts: Sequence[ModelCount], more: Sequence[int]) -> bool:
        """Whether `more` models of each variation, whatever they show, can decide beside those that are counted."""
        ends = [(each.k, each.k + extra) for each, extra in zip(counts, more, strict=True)]
        n = [each.n + extra for each, extra in zip(counts, more, strict=True)]
        # The two extremes: all further ones of the first variation and none of the second have it, or the reverse.
        for_it = [ModelCount(end[place == 0], size) for place, (end, size) in enumerate(zip(ends, n, strict=True))]
        against = [ModelCount(end[place != 0], size) for place, (end, size) in enumerate(zip(ends, n, strict=True))]
        return min(n) >= self.fewest and min(self.p_values(for_it)[0], self.p_values(against)[1]) <= LEVEL

    def _decides_at(self, counts: Sequence[ModelCount]) -> int | None:
        return _decides_at(self, tuple(counts))


@lru_cache(maxsize=4096)  # hundreds of tests for each, and the same few counts again in all claims
def _decides_at(rule: Count, counts: tuple[ModelCount, ...]) -> int | None:
    # At equal n only the larger share can be found to be larger, and its tail has the fewer terms.
    ordered = sorted(counts, key=lambda each: each.share, reverse=True)
    if rule.share is None and ordered[0].share == ordered[1].share:
        return None
    for n in range(max(rule.fewest, *(each.n for each in counts)), MOST + 1):
        grown = [ModelCount(round(each.share * n), n) for each in ordered]
        if (fisher(*grown) if rule.share is None else min(rule.p_values(grown))) <= LEVEL:
            return n
    return None


@validated(frozen=True, config=_STRICT)
class Size:
    """An effect is `above` or `below` a margin, or `within` ± a margin, by the 98 % interval of its mean over models.

    Student's t for one variation, Welch's for a difference. Confirmed where the interval lies on the claimed side of
    the margin, not seen where it lies on the other, open otherwise. With `ratio` the effect is the logarithm of a
    ratio, which is compared with the logarithm of the margin.

    `symmetric`: the scale of the effect has no long tail (losses, logarithms), so that six models will do. Otherwise
    twelve are asked for. One in six may be left out for a technical reason: five of six decide, ten of twelve. A tail
    costs more than the level says even then: of one variation's lognormal values (σ = .5) "not seen" errs in 4.5 % of
    cases with six models and 4.2 % with twelve, "confirmed" in .1 and .2 % (`python -m tools.grades`). So logarithms
    are the scale of masses and norms. `fewest` overrides both.

    Equal values in all models are open: their interval has no width, which says nothing of the next model, and how many
    of them have it is a count claim.
    """

    margin: _Limit
    side: Literal["above", "below", "within"] = "above"
    ratio: bool = False
    symmetric: bool = False
    fewest: Annotated[int, Field(ge=2)] | None = None
    kind: Literal["size"] = "size"

    def __str__(self) -> str:
        sign = {"above": ">", "below": "<", "within": "|x| ≤"}[self.side]
        return f"{sign} {self.margin:g}{' times' if self.ratio else ''}"

    @property
    def least(self) -> int:
        """The fewest models per variation that a question plans."""
        return self.fewest or (6 if self.symmetric or self.ratio else 12)

    @property
    def left(self) -> int:
        """The fewest models per variation that decide: one in six may be refused for a technical reason."""
        return self.fewest or self.least - self.least // 6

    def judge(self, effect: Estimate) -> Judgment:
        interval = (effect.bound(LEVEL), effect.bound(1 - LEVEL)) if min(effect.n) > 1 else None
        if interval is None or min(effect.n) < self.left:
            reason = f"fewer than {self.left} models"
            return Judgment("open", effect.mean, interval, effect.n, decides_at=self._decides_at(effect), reason=reason)
        if effect.error == 0:
            reason = "all models have the same value: ask how many have it (a count claim)"
            return Judgment("open", effect.mean, None, effect.n, reason=reason)
        grade = self._grade(interval)
        decides_at = self._decides_at(effect) if grade == "open" else None
        return Judgment(grade, effect.mean, interval, effect.n, (), self._p(effect), decides_at)

    def can_decide(self, *n: int) -> bool:
        """Whether so many models per variation can decide."""
        return min(n) >= self.least

    def _limit(self) -> float:
        return math.log(self.margin) if self.ratio else self.margin

    def _grade(self, interval: tuple[float, float]) -> Grade:
        low, high = interval
        limit = self._limit()
        if self.side == "within":
            outside = low > limit or high < -limit
            return "confirmed" if -limit <= low and high <= limit else "not seen" if outside else "open"
        over, under = low > limit, high < limit
        if self.side == "below":
            over, under = under, over
        return "confirmed" if over else "not seen" if under else "open"

    def _p(self, effect: Estimate) -> float:
        limit = self._limit()
        if self.side == "within":
            # Two one-sided tests: both must reject, so the larger p-value decides.
            return max(1 - effect.above(limit), effect.above(-limit))
        return effect.above(limit) if self.side == "above" else 1 - effect.above(limit)

    def _decides_at(self, effect: Estimate) -> int | None:
        """All variations growing alike: the error shrinks with √n, and degrees of freedom grow with n."""
        if math.isnan(effect.error) or effect.error == 0:
            return None
        largest = max(effect.n)
        # If enough models did not decide, at least one more is needed.
        candidates = range(max(self.least, largest + (min(effect.n) >= self.left)), MOST + 1)

        def decided(n: int) -> bool:
            factor = n / largest
            more = replace(effect, error=effect.error / math.sqrt(factor), df=effect.df * factor)
            return self._grade((more.bound(LEVEL), more.bound(1 - LEVEL))) != "open"

        # Each interval lies within that of fewer models, so what is decided stays so.
        place = bisect_left(candidates, True, key=decided)
        return candidates[place] if place < len(candidates) else None


Rule = Annotated[EachWithin | EachAbove | Count | Size, Field(discriminator="kind")]


@validated(frozen=True, config=_STRICT)
class Claim:
    """What is asserted: a short name, a sentence with its numbers, where it comes from, and the rule that decides.

    `source`: the publication and the place in it, such as "Gu et al. 2025, appendix B". None of them may be empty.
    """

    name: _Words
    statement: _Words
    source: _Words
    rule: Rule

    def judge(
        self,
        numbers: Iterable[CaseValue] | Estimate | Sequence[ModelCount],
        reason: str = "",
        evidence: Sequence[CaseValue] = (),
    ) -> Verdict:
        """The verdict that the rule reaches: on cases (`EachWithin`, `EachAbove`), counts, or an estimated effect.

        `evidence`: what is kept with the verdict, where the numbers themselves are not cases.
        """
        if not isinstance(numbers, Estimate):
            numbers = tuple(numbers)  # type: ignore[assignment]
            if not numbers:
                return self.open(reason or "nothing was measured")
            if isinstance(self.rule, EachWithin | EachAbove):
                evidence = numbers  # type: ignore[assignment]
        judged = self.rule.judge(numbers)  # type: ignore[arg-type]
        reasons = "; ".join(filter(None, (judged.reason, reason)))
        fields = {name: value for name, value in vars(judged).items() if name != "reason"}
        return Verdict(self, evidence=tuple(evidence), reason=reasons, **fields)

    def open(self, reason: str) -> Verdict:
        """The verdict on a claim that nothing was found for, and why."""
        return Verdict(self, "open", reason=reason)


@validated(frozen=True, config=_STRICT)
class Verdict:
    """A claim, its grade, and the numbers behind it: as in `Judgment`, logarithms where the rule asks for a ratio.

    `reason`: why it is open or not registered, which models were left out, what differs, in a phrase. `undecidable`:
    runs are missing, and whatever they show, the claim stays open.
    """

    claim: Claim
    grade: Grade
    value: float | None = None
    interval: tuple[float, float] | None = None
    n: tuple[int, ...] = ()
    k: tuple[int, ...] = ()
    p: float | None = None
    decides_at: int | None = None
    evidence: tuple[CaseValue, ...] = ()
    reason: str = ""
    undecidable: bool = False

    @property
    def found(self) -> str:
        """The numbers as people read them: `13 of 13 against 1 of 8`, `3.12 (1.24 to 5)`, `1.4 times (1.1 to 1.8)`."""
        if self.value is None or math.isnan(self.value):
            return "–"
        if self.k:
            return self._counts()
        value = self._plain(self.value)
        if self.interval is None or any(map(math.isnan, self.interval)):
            return value
        low, high = map(self._plain, self.interval)
        return f"{value}{' times' if self._ratio else ''} ({low} to {high})"

    @property
    def graded(self) -> str:
        """The grade, and why it is that: `open (4 of 6 runs)`."""
        each = " each" if len(self.n) > 1 else ""
        more = f"decided by {self.decides_at} models{each} at today's numbers" if self.decides_at else ""
        reasons = "; ".join(filter(None, (self.reason, more)))
        return f"{self.grade} ({reasons})" if reasons else self.grade

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of `COLUMNS`, as text."""
        claim = self.claim
        cases = " and ".join(map(str, self.n)) or str(len(self.evidence))
        return claim.name, claim.statement, claim.source, str(claim.rule), self.found, cases, self.graded

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data; NaN and infinities as text."""
        return json.loads(_adapter().dump_json(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Back from plain data, of today or by the earlier rules.

        Raises `InputError`, in one line with the field's name, for what does not fit.
        """
        try:
            return _adapter().validate_python(_of_before(data) if "outcome" in data else dict(data))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in problem["loc"])
            raise InputError(f"verdict: {field}: {problem['msg']}") from error

    @property
    def _ratio(self) -> bool:
        return isinstance(self.claim.rule, Size) and self.claim.rule.ratio

    def _plain(self, value: float) -> str:
        figures = 3 if self.n else 2  # an effect over models, or an error
        return f"{(math.exp(value) if self._ratio else value) + 0.0:.{figures}g}"

    def _counts(self) -> str:
        counts = [ModelCount(*each) for each in zip(self.k, self.n, strict=True)]
        words = " against ".join(map(str, counts))
        if self.interval is not None:
            low, high = (round(100 * end) for end in self.interval)
            return f"{words} ({low} to {high} %)"
        none = [each for each in counts if each.n and not each.k]
        return f"{words} (below {100 * none_bound(none[0].n):.0f} %)" if none else words


def share_interval(counted: ModelCount, level: float = BOUND) -> tuple[float, float]:
    """The Clopper-Pearson interval of a share, 0 to 1."""
    from scipy.special import betaincinv

    (k, n), tail = counted, (1 - level) / 2
    return (
        # At k = 0 and k = n one end is known, and its beta distribution has a parameter of 0.
        float(betaincinv(k, n - k + 1, tail)) if k else 0.0,
        float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0,
    )


def fisher(first: ModelCount, second: ModelCount) -> float:
    """Fisher's exact test: the chance of k or more in the first, given how many there are in both.

    Σ over x ≥ k of C(n₁, x) C(n₂, K − x) / C(n₁ + n₂, K), K = k₁ + k₂.
    """
    both = first.k + second.k
    # In integers, which are exact, with one division at the end.
    ways = sum(math.comb(first.n, k) * math.comb(second.n, both - k) for k in range(first.k, min(first.n, both) + 1))
    return ways / math.comb(first.n + second.n, both)


def none_bound(n: int, level: float = BOUND) -> float:
    """The largest share, 0 to 1, of which none among n models is not rarer than 1 − level: 1 − (1 − level)^(1/n)."""
    return 1 - (1 - level) ** (1 / n)


def cells(verdict: Verdict, *columns: str) -> tuple[str, ...]:
    """Some cells of a verdict's row, in another order: `cells(verdict, "claim", "grade")`."""
    row = dict(zip(COLUMNS, verdict.row, strict=True))
    return tuple(row[column] for column in columns)


def tally(verdicts: Iterable[Verdict]) -> str:
    """How many claims have each grade, in words: `31 confirmed, 1 open`."""
    counts = Counter(verdict.grade for verdict in verdicts)
    return ", ".join(f"{counts[grade]} {grade}" for grade in GRADES if counts[grade]) or "no claims"


def markdown(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as a Markdown table, one row per claim."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for verdict in verdicts:
        escaped = (" ".join(cell.replace("|", "\\|").split()) for cell in verdict.row)
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines)


def _of_before(data: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict by the earlier rules: identities keep their grade, claims over seeds are open, with what was said."""
    claim, outcome = dict(data["claim"]), data["outcome"]
    rule = dict(claim["rule"])
    identity = rule.get("kind") in ("each_within", "each_above")
    if not identity:
        margin = next((rule[name] for name in ("margin", "limit", "tolerance") if name in rule), 0.0)
        side = rule["kind"] if rule.get("kind") in ("above", "below", "within") else "above"
        claim["rule"] = {"kind": "size", "margin": margin, "side": side, "ratio": rule.get("ratio", False)}
    grade = {"supported": "confirmed", "refuted": "not seen"}.get(outcome, "open") if identity else "open"
    reason = data.get("reason", "") if identity else f"judged as {outcome} by earlier rules"
    kept = {name: data[name] for name in ("interval", "n", "p", "evidence") if data.get(name) is not None}
    return {**kept, "claim": claim, "grade": grade, "value": data.get("residual"), "reason": reason}


def _adapter() -> Any:  # a TypeAdapter[Verdict]; runtime checkers of annotations do not know that type
    return TypeAdapter(Verdict)
