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
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from sinkscope.errors import InputError
from sinkscope.statistics.estimates import Estimate
from sinkscope.statistics.rules import (
    UNDECIDED,
    Above,
    Below,
    EachAbove,
    EachWithin,
    Evidence,
    Judgment,
    Outcome,
    Rule,
    SeedsAbove,
    Within,
)

__all__ = [
    "COLUMNS",
    "Above",
    "Below",
    "Claim",
    "EachAbove",
    "EachWithin",
    "Evidence",
    "Judgment",
    "Outcome",
    "Rule",
    "SeedsAbove",
    "Verdict",
    "Within",
    "cells",
    "markdown",
    "tally",
]

COLUMNS = ("claim", "statement", "source", "asked", "found", "cases", "verdict")

_STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="strings")  # JSON has no infinity; text round-trips
_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


@validated(frozen=True, config=_STRICT)
class Claim:
    """What is asserted: a short name, a sentence with its numbers, where it comes from, and the rule that decides.

    `source`: the publication and the place in it, such as "Gu et al. 2025, appendix B". None of them may be empty.
    """

    name: _Words
    statement: _Words
    source: _Words
    rule: Rule

    def judge(self, evidence: Iterable[Evidence], reason: str = "", over: Estimate | None = None) -> Verdict:
        """The verdict that the rule reaches on these numbers; without any, that it was not run.

        `over`: an effect made of more seeds than the evidence names, such as a difference of runs that do not share
        theirs; only for rules that judge intervals.
        """
        found = tuple(evidence)
        rule = self.rule
        by_interval = over is not None and isinstance(rule, Above | Below | Within)
        if not found and not by_interval:
            return self.not_run(reason or "nothing was measured")
        judged = rule.weigh(over) if over and isinstance(rule, Above | Below | Within) else rule.judge(found)
        if judged.outcome == "refuted" and judged.worst is not None and not reason:
            reason = f"{judged.worst.case}: {judged.worst.value:.3g}"
        least, p, n = judged.least, judged.p, judged.n
        return Verdict(
            self,
            judged.outcome,
            judged.residual,
            judged.spread,
            found,
            reason,
            judged.kind,
            judged.interval,
            n,
            p,
            least,
        )

    def not_run(self, reason: str) -> Verdict:
        """The verdict on a claim that could not be tried, and why."""
        return Verdict(self, "not run at this scale", reason=reason)


@validated(frozen=True, config=_STRICT)
class Verdict:
    """A claim, what was found, and what follows.

    `residual` and `spread` as the claim's rule defines them, None where nothing was run. `reason`: why it is refuted,
    undecided or not run, in a phrase. The rest as in `Judgment`; all of it is logarithms where the rule is of a ratio.
    """

    claim: Claim
    outcome: Outcome
    residual: float | None = None
    spread: float | None = None
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    kind: str = ""
    interval: tuple[float, float] | None = None
    n: tuple[int, ...] = ()
    p: float | None = None
    least: float | None = None

    @property
    def ratio(self) -> bool:
        """Whether its numbers are logarithms of ratios."""
        return isinstance(self.claim.rule, Above) and self.claim.rule.ratio

    @property
    def found(self) -> str:
        """The effect with its interval, or its spread: `3.12 (1.24 to 5)`; a ratio as `1.4 times (1.1 to 1.8)`."""
        if self.residual is None or math.isnan(self.residual):
            return "–"
        if self.interval is None or any(map(math.isnan, self.interval)):
            return self._said(self.residual) + (f" ± {self.spread:.2g}" if self.spread else "")
        low, high = map(self._said, self.interval)
        return f"{self._said(self.residual)}{' times' if self.ratio else ''} ({low} to {high})"

    @property
    def shown_at_least(self) -> str:
        """The smallest effect that these seeds could have shown, in the claim's units."""
        return "–" if self.least is None or math.isnan(self.least) else self._said(self.least)

    @property
    def said(self) -> str:
        """The outcome in words: with its kind where that says more."""
        return f"{self.outcome}: {self.kind}" if self.kind and self.kind != UNDECIDED else self.outcome

    def _said(self, value: float) -> str:
        figures = 3 if self.n else 2  # of an effect over seeds, or of an error
        return f"{(math.exp(value) if self.ratio else value) + 0.0:.{figures}g}"

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
        verdict = f"{self.said} ({self.reason})" if self.reason else self.said
        claim = self.claim
        cases = " and ".join(map(str, self.n)) or str(len(self.evidence))
        return claim.name, claim.statement, claim.source, str(claim.rule), self.found, cases, verdict


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


def _adapter() -> Any:  # a TypeAdapter[Verdict]; runtime checkers of annotations do not know that type
    return TypeAdapter(Verdict)
