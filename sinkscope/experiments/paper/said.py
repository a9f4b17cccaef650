"""What the paper says, and how claims answer it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from sinkscope.claims import Verdict, tally
from sinkscope.errors import InputError
from sinkscope.experiments.findings import Judged, holds_after_holm
from sinkscope.rules import TOO_FEW

NOT_RUN = "not run at this scale"
LATE, FADES = "stated after its first run", "not at 5 % with all primary claims corrected together"
CITED = ("Gu et al. 2025", "slides of Gu et al. 2025")
_FAVOR = {"refuted": 0, NOT_RUN: 1, TOO_FEW: 2, "inconclusive": 3, "supported": 4}
_SEEDS = {"supported": 0, "refuted": 0, "inconclusive": 0, TOO_FEW: 1, NOT_RUN: 2}


@dataclass(frozen=True)
class Said:
    """One statement: in our words, where it stands, and its numbers (`published`, "" where there are none).

    `claims`: what answers it, "question/claim", the most telling first; * stands for any part of a claim's name. They
    say one thing in several ways, or, with `every`, are its parts, which must all hold. Where no run can answer it,
    either `theory` names a check of `sinkscope theory` that does, or `beyond` says why nothing here does. Raises
    `InputError` for a statement with none of the three, or with more.
    """

    says: str
    place: str
    published: str = ""
    claims: tuple[str, ...] = ()
    every: bool = False
    theory: str = ""
    beyond: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.claims, self.theory, self.beyond))) != 1:
            raise InputError(
                f"statement '{self.says}': needs either claims, or a check of theory, or why there is none"
            )


@dataclass(frozen=True)
class Part:
    """A claim that bears on a statement: of which question, whether it is the primary one there, and its verdict."""

    question: str
    primary: bool
    verdict: Verdict

    @property
    def standing(self) -> str:
        """Its outcome, or that it has too few seeds for any."""
        return TOO_FEW if self.verdict.kind == TOO_FEW else self.verdict.outcome

    @property
    def weighed(self) -> bool:
        """Whether it was judged on as many seeds as it asks for."""
        return self.standing not in (NOT_RUN, TOO_FEW)


@dataclass(frozen=True)
class Answer:
    """A statement, the claim that answers it (`by`, None where none can), and the other claims that bear on it.

    `caveats`: what weakens its verdict, in phrases.
    """

    said: Said
    by: Part | None = None
    others: tuple[Part, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether it is supported or refuted by runs."""
        return self.by is not None and self.by.verdict.outcome in ("supported", "refuted")

    @property
    def words(self) -> str:
        """The verdict in words; where no run can decide it, what does or that nothing does."""
        if self.by is not None:
            return self.by.verdict.said
        return "holds by theory" if self.said.theory else "beyond this hardware" if self.said.beyond else NOT_RUN

    @property
    def why(self) -> str:
        """Why it stands undecided, and what weakens its verdict, in phrases; "" where there is neither."""
        if self.by is not None:
            return "; ".join(filter(None, ("" if self.decided else self.by.verdict.reason, *self.caveats)))
        return f"`sinkscope theory`: {self.said.theory}" if self.said.theory else self.said.beyond

    @property
    def beside(self) -> str:
        """What the other claims that were judged say, as a count; "" without any."""
        weighed = [part.verdict for part in self.others if part.weighed]
        return tally(weighed) if weighed else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data."""
        by = None
        if self.by is not None:
            claim = self.by.verdict.claim
            by = {"experiment": self.by.question, "claim": claim.name, "primary": self.by.primary}
        others = [{"experiment": part.question, "claim": part.verdict.claim.name} for part in self.others]
        return {**vars(self.said), "verdict": self.words, "why": self.why, "by": by, "others": others}


def answer(said: Said, judged: Judged) -> Answer:
    """A statement's answer.

    Of claims that say one thing in several ways it is that of the first one that has the seeds it asks for, else of the
    first with any run: which one that is depends on how many runs there are, never on what they say. Of claims that
    must all hold it is the least favorable: one that is refuted, else one that was not run or is undecided, so that it
    is supported where all are, which errs in 5 % of cases at most as each of them does. Raises `InputError` for a claim
    that no question has.
    """
    parts = list(dict.fromkeys(part for pattern in said.claims for part in _parts(pattern, judged, said)))
    if not parts:
        return Answer(said)
    by = min(parts, key=lambda part: _FAVOR[part.standing] if said.every else _SEEDS[part.standing])
    return Answer(said, by, tuple(part for part in parts if part is not by))


def answers(
    statements: Mapping[str, Sequence[Said]], judged: Judged, late: Container[tuple[str, str]] = ()
) -> dict[str, list[Answer]]:
    """The answers to all statements, by the part of the paper they stand in.

    `late`: questions and names of claims that were stated after their first run, which is a caveat of what they answer;
    another is that a primary claim is no longer supported when all of them are corrected together.
    """
    held = holds_after_holm(judged)

    def with_caveats(found: Answer) -> Answer:
        by = found.by
        if by is None or not by.weighed:
            return found
        fades = by.primary and by.standing == "supported" and not held.get(by.question, True)
        known = ((LATE, (by.question, by.verdict.claim.name) in late), (FADES, fades))
        return replace(found, caveats=tuple(words for words, so in known if so))

    return {part: [with_caveats(answer(said, judged)) for said in group] for part, group in statements.items()}


def cites(verdict: Verdict) -> bool:
    """Whether a claim is one of the paper: not one of ours after it, nor of related work."""
    return verdict.claim.source.startswith(CITED)


def unanswered(found: Mapping[str, Iterable[Answer]], judged: Judged) -> list[Part]:
    """Claims of the paper that bear on no statement."""
    named = {
        (part.question, part.verdict.claim.name)
        for group in found.values()
        for each in group
        for part in (*([each.by] if each.by else []), *each.others)
    }
    every = [Part(name, not index, v) for name, verdicts in judged.items() for index, v in enumerate(verdicts)]
    return [part for part in every if cites(part.verdict) and (part.question, part.verdict.claim.name) not in named]


def _parts(pattern: str, judged: Judged, said: Said) -> list[Part]:
    name, _, wanted = pattern.partition("/")
    found = [
        Part(name, not index, verdict)
        for index, verdict in enumerate(judged.get(name, ()))
        if fnmatchcase(verdict.claim.name, wanted)
    ]
    if not found and name in judged:
        raise InputError(f"statement '{said.says}': experiment '{name}' has no claim '{wanted}'")
    return found
