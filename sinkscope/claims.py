"""A claim stated beforehand, the numbers that bear on it, and the verdict: one type for theory, tables, experiments.

A claim says what is asserted and by which rule numbers decide about it, before there are any. Evidence is numbers, each
with the case it was found in. Whatever is compared comes down to such a number: for an identity the difference of its
two sides; for an experiment the effect in one seed, such as the difference of two runs' sink rates, the smallest step
of a series that should rise, or 1 where the maximum stands at the right position and 0 elsewhere.

    claim = Claim("uniform", "A[t, i] = 1/t on repeated tokens", "Gu et al. 2025, appendix B", EachWithin(1e-6))
    verdict = claim.judge([Evidence("T = 64", 2e-8)])
    verdict.outcome  # "supported"
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from sinkscope.errors import InputError

Outcome = Literal["supported", "refuted", "inconclusive", "not run at this scale"]
COLUMNS = ("claim", "statement", "source", "asked", "found", "cases", "verdict")

_STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="strings")  # JSON has no infinity; text round-trips
_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Limit = Annotated[float, Field(allow_inf_nan=False)]


@validated(frozen=True, config=_STRICT)
class Evidence:
    """One number and where it was found: `Evidence("T = 64, seed 1", 3e-8)`."""

    case: str
    value: float


@dataclass(frozen=True)
class Judgment:
    """What a rule makes of the numbers. `residual` is the one that decides, `spread` how far replicates differ."""

    outcome: Outcome
    residual: float
    spread: float = 0.0
    worst: Evidence | None = None


@validated(frozen=True, config=_STRICT)
class EachWithin:
    """|x| ≤ tolerance in every case: identities up to rounding, and bounds by how far they are overstepped.

    The residual is the largest |x|. NaN is beyond every tolerance.
    """

    tolerance: Annotated[_Limit, Field(ge=0)]
    kind: Literal["each_within"] = "each_within"

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

    def __str__(self) -> str:
        return f"> {self.margin:g} in {self.seeds} seeds"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        return _of_seeds(evidence, self.seeds, lambda value: value > self.margin)


@validated(frozen=True, config=_STRICT)
class SeedsBelow:
    """x < limit, where each number is the effect in one seed. Verdict, residual and spread as in `SeedsAbove`."""

    limit: _Limit
    seeds: Annotated[int, Field(ge=1)] = 3
    kind: Literal["seeds_below"] = "seeds_below"

    def __str__(self) -> str:
        return f"< {self.limit:g} in {self.seeds} seeds"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        return _of_seeds(evidence, self.seeds, lambda value: value < self.limit)


@validated(frozen=True, config=_STRICT)
class SeedsWithin:
    """|x| ≤ tolerance, where each number is the effect in one seed: equal within noise.

    Supported where all seeds are within the tolerance, refuted where all exceed it, inconclusive where they disagree,
    where there are fewer than `seeds`, and where one is NaN. The residual is their mean, the spread half the way from
    the smallest to the largest.
    """

    tolerance: Annotated[_Limit, Field(ge=0)]
    seeds: Annotated[int, Field(ge=1)] = 3
    kind: Literal["seeds_within"] = "seeds_within"

    def __str__(self) -> str:
        return f"|x| ≤ {self.tolerance:g} in {self.seeds} seeds"

    def judge(self, evidence: Sequence[Evidence]) -> Judgment:
        return _of_seeds(evidence, self.seeds, lambda value: abs(value) <= self.tolerance)


Rule = Annotated[EachWithin | EachAbove | SeedsAbove | SeedsBelow | SeedsWithin, Field(discriminator="kind")]


@validated(frozen=True, config=_STRICT)
class Claim:
    """What is asserted: a short name, a sentence with its numbers, where it comes from, and the rule that decides.

    `source`: the publication and the place in it, such as "Gu et al. 2025, appendix B". None of them may be empty.
    """

    name: _Words
    statement: _Words
    source: _Words
    rule: Rule

    def judge(self, evidence: Iterable[Evidence], reason: str = "") -> Verdict:
        """The verdict that the rule reaches on these numbers; without any, that it was not run."""
        found = tuple(evidence)
        if not found:
            return self.not_run(reason or "nothing was measured")
        judged = self.rule.judge(found)
        if judged.outcome == "refuted" and judged.worst is not None and not reason:
            reason = f"{judged.worst.case}: {judged.worst.value:.3g}"
        return Verdict(self, judged.outcome, judged.residual, judged.spread, found, reason)

    def not_run(self, reason: str) -> Verdict:
        """The verdict on a claim that could not be tried, and why."""
        return Verdict(self, "not run at this scale", reason=reason)


@validated(frozen=True, config=_STRICT)
class Verdict:
    """A claim, what was found, and what follows.

    `residual` and `spread` as the claim's rule defines them, None where nothing was run. `reason`: why it is refuted,
    undecided or not run, in a phrase.
    """

    claim: Claim
    outcome: Outcome
    residual: float | None = None
    spread: float | None = None
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data; NaN and infinities as text."""
        return json.loads(_adapter().dump_json(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Back from plain data. Raises `InputError`, in one line with the field's name, for what does not fit."""
        try:
            return _adapter().validate_python(dict(data))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in problem["loc"])
            raise InputError(f"verdict: {field}: {problem['msg']}") from error

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of `COLUMNS`, as text."""
        found = "–" if self.residual is None else f"{self.residual:.2g}"
        spread = f" ± {self.spread:.2g}" if self.spread else ""
        verdict = f"{self.outcome} ({self.reason})" if self.reason else self.outcome
        claim = self.claim
        cases = str(len(self.evidence))
        return claim.name, claim.statement, claim.source, str(claim.rule), found + spread, cases, verdict


def cells(verdict: Verdict, *columns: str) -> tuple[str, ...]:
    """Some cells of a verdict's row, in another order: `cells(verdict, "claim", "verdict")`."""
    row = dict(zip(COLUMNS, verdict.row, strict=True))
    return tuple(row[column] for column in columns)


def tally(verdicts: Iterable[Verdict]) -> str:
    """How many of each outcome, in words: `31 supported, 1 refuted`."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    order: tuple[Outcome, ...] = ("supported", "refuted", "inconclusive", "not run at this scale")
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order if counts[outcome]) or "no claims"


def markdown(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as a Markdown table, a row each."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for verdict in verdicts:
        cells = (" ".join(cell.replace("|", "\\|").split()) for cell in verdict.row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_seeds(evidence: Sequence[Evidence], seeds: int, holds: Callable[[float], bool]) -> Judgment:
    """All seeds or none: what at least `seeds` replicates agree on."""
    values = [found.value for found in evidence]
    mean, spread = math.fsum(values) / len(values), (max(values) - min(values)) / 2
    outcome: Outcome = "inconclusive"
    if len(values) >= seeds and not any(map(math.isnan, values)):
        held = [holds(value) for value in values]
        outcome = "supported" if all(held) else "inconclusive" if any(held) else "refuted"
    return Judgment(outcome, mean, spread)


def _adapter() -> Any:  # a TypeAdapter[Verdict]; runtime checkers of annotations do not know that type
    return TypeAdapter(Verdict)
