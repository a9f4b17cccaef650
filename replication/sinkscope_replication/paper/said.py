"""What the paper says, and the claims that bear on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sinkscope.errors import InputError
from sinkscope.experiments import Judged
from sinkscope.statistics.claims import Verdict

NOT_RUN = "not run at this scale"
CITED = ("Gu et al. 2025", "slides of Gu et al. 2025")


@dataclass(frozen=True)
class Said:
    """One statement: in our words, where it stands, and its numbers (`published`, "" where there are none).

    `claims`: what bears on it, "question/claim", the most telling first; * stands for any part of a claim's name. They
    say one thing in several ways, or, with `every`, are its parts. Where no run can answer it, either `theory` names a
    check of `sinkscope_replication.theory` that does, or `beyond` says why nothing here does. Raises `InputError` for a
    statement with none of the three, or with more.
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


def parts(said: Said, judged: Judged) -> list[Part]:
    """The claims that bear on a statement, in its order. Raises `InputError` for a claim that no question has."""
    return list(dict.fromkeys(part for pattern in said.claims for part in _parts(pattern, judged, said)))


def cites(verdict: Verdict) -> bool:
    """Whether a claim is one of the paper: not one of ours after it, nor of related work."""
    return verdict.claim.source.startswith(CITED)


def unanswered(statements: Mapping[str, Iterable[Said]], judged: Judged) -> list[Part]:
    """Claims of the paper that bear on no statement."""
    every = [said for group in statements.values() for said in group]
    named = {(part.question, part.verdict.claim.name) for said in every for part in parts(said, judged)}
    all_parts = [Part(name, not index, v) for name, verdicts in judged.items() for index, v in enumerate(verdicts)]
    return [part for part in all_parts if cites(part.verdict) and (part.question, part.verdict.claim.name) not in named]


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
