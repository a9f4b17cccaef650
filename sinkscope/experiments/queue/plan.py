"""What is missing, the most valuable first: the committed order, then what the most undecided claims lack."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from sinkscope.claims import Outcome
from sinkscope.errors import InputError, unknown
from sinkscope.experiments.contrasts import Contrast
from sinkscope.experiments.findings import Findings, labels_read, verdicts
from sinkscope.experiments.identities import Identity, identities
from sinkscope.experiments.pooled import Key, Known
from sinkscope.experiments.question import Assertion, Question
from sinkscope.experiments.questions import QUESTIONS
from sinkscope.experiments.queue.order import ORDER, Wanted

if TYPE_CHECKING:  # jobs load torch
    from sinkscope.experiments.jobs import Job

UNDECIDED: tuple[Outcome, ...] = ("inconclusive", "not run at this scale")
FEWEST, MOST = 3, 10  # seeds: what a claim needs, and what no claim gets more of


@dataclass(frozen=True)
class Planned:
    """A run that is missing. `claims`: how many undecided claims lack it; `seconds`: estimated, None where unknown."""

    question: str
    label: str
    seed: int
    why: str
    claims: int
    seconds: float | None
    key: Key

    @property
    def called(self) -> str:
        """What a person calls it."""
        return f"{self.question}: {self.label}, seed {self.seed}"


def plan(known: Known, questions: Mapping[str, Question] = QUESTIONS, order: Sequence[Wanted] = ORDER) -> list[Planned]:
    """Every missing run once: those of `order`, then those that the most undecided claims lack.

    An undecided claim lacks its first three seeds and, where it has these, the next one, up to ten in all. Among runs
    that as many claims lack, the lower seed comes first, then the cheaper run. Raises `InputError` where the order
    names a question or a variation that there is not.
    """
    scale = known.scale
    ids = {name: identities(question, scale) for name, question in questions.items()}
    lacking = _lacking(known, questions, ids)
    pace = _pace(known)
    made = set(known.runs)
    found: list[Planned] = []

    def add(name: str, label: str, seed: int, why: str) -> None:
        one = ids[name][label]
        if (key := (one.key, seed)) in made:
            return
        made.add(key)
        seconds = pace[one.kind] * one.steps if one.kind in pace else None
        found.append(Planned(name, label, seed, why, lacking.get(key, (0,))[0], _cost(known, one) or seconds, key))

    for name, label, seed, why in _listed(questions, order, ids):
        add(name, label, seed, why)
    valued = [
        (-claims, key[1], ids[name][label].steps, place, name, label)
        for place, (key, (claims, name, label)) in enumerate(lacking.items())
    ]
    for claims, seed, _, _, name, label in sorted(valued):
        add(name, label, seed, f"{-claims} undecided claim{'' if claims == -1 else 's'}")
    return found


def require_whole(known: Known) -> None:
    """Raises `InputError` for a damaged record, to which no run could be added."""
    for line in known.damaged.values():
        raise InputError(line)


def require_hours(hours: float | None) -> None:
    """Raises `InputError` for hours that are not positive."""
    if hours is not None and not hours > 0:
        raise InputError(f"hours = {hours:g}: more than 0")


def _listed(
    questions: Mapping[str, Question], order: Sequence[Wanted], ids: Mapping[str, Mapping[str, Identity]]
) -> Iterator[tuple[str, str, int, str]]:
    for wanted in order:
        if wanted.question not in questions:
            raise unknown("experiment", wanted.question, questions)
        labels = [variation.label for variation in questions[wanted.question].variations]
        for label in wanted.labels:
            if label not in labels:
                raise unknown(f"variation of experiment '{wanted.question}'", label, labels)
        for seed in wanted.seeds if ids[wanted.question] else ():
            yield from ((wanted.question, label, seed, wanted.why) for label in wanted.labels or labels)


def _lacking(
    known: Known, questions: Mapping[str, Question], ids: Mapping[str, Mapping[str, Identity]]
) -> dict[Key, tuple[int, str, str]]:
    """How many undecided claims lack a run, and the first question and label that it stands under."""
    found: dict[Key, tuple[int, str, str]] = {}
    for name, question in questions.items():
        if not ids[name] or name in known.damaged:
            continue
        findings = known.of(question)
        for assertion, verdict in zip(question.assertions, verdicts(question, findings, known.scale), strict=True):
            if verdict.outcome not in UNDECIDED:
                continue
            for label, seed in _wanted(question, assertion, findings, known.scale):
                key = (ids[name][label].key, seed)
                if key not in known.runs:
                    claims, *place = found.get(key, (0, name, label))
                    found[key] = (claims + 1, str(place[0]), str(place[1]))
    return found


def _wanted(
    question: Question, assertion: Assertion, findings: Findings | None, scale: str
) -> Iterator[tuple[str, int]]:
    """What a claim lacks of its first three seeds, or else the next one of each label.

    New seeds are those that all claims of the question can count. Where an effect is made within a seed, these are
    three that all its labels have, or can have soonest.
    """
    runs, counted = findings.runs if findings else {}, assertion.first_seed(scale)
    have = {
        label: {seed for seed in runs.get(label, {}) if seed >= counted} for label in labels_read(question, assertion)
    }
    start = max(one.first_seed(scale) for one in question.assertions)
    if isinstance(assertion.effect, Contrast):
        lacking = {label: _next(seeds, start, FEWEST - len(seeds)) for label, seeds in have.items()}
    else:
        shared = sorted(range(counted, MOST), key=lambda seed: (-_having(have, seed), seed < start, seed))[:FEWEST]
        lacking = {label: [seed for seed in shared if seed not in seeds] for label, seeds in have.items()}
    if any(lacking.values()):
        yield from ((label, seed) for label, seeds in lacking.items() for seed in seeds)
        return
    fewest = min(map(len, have.values()), default=MOST)
    for label, seeds in have.items():
        if len(seeds) == fewest:
            yield from ((label, seed) for seed in _next(seeds, counted, 1))


def _next(seeds: Container[int], start: int, number: int) -> list[int]:
    """The lowest seeds from `start` on that are not there, below ten."""
    return [seed for seed in range(start, MOST) if seed not in seeds][: max(0, number)]


def _having(have: Mapping[str, Container[int]], seed: int) -> int:
    return sum(seed in seeds for seeds in have.values())


def _pace(known: Known) -> dict[str, float]:
    """Seconds that a step takes, by the kind of job: the median over all runs that are known."""
    paces: dict[str, list[float]] = {}
    for name, findings in known.records.items():
        if name not in QUESTIONS:
            continue
        ids = identities(QUESTIONS[name], known.scale)
        for label, seeds in findings.runs.items():
            if label in ids and ids[label].steps:
                paces.setdefault(ids[label].kind, []).extend(run.seconds / ids[label].steps for run in seeds.values())
    return {kind: median(values) for kind, values in paces.items() if values}


def _cost(known: Known, one: Identity) -> float | None:
    """What other seeds of the same run took."""
    seconds = [run.seconds for (key, _), run in known.runs.items() if key == one.key]
    return median(seconds) if seconds else None


@dataclass(frozen=True)
class Expected:
    """What the runs of a question would take: how many, how many of them from records, seconds one after the other
    (None where no like run is known), bytes that they leave (None for tasks, whose models vary)."""

    runs: int
    reused: int
    seconds: float | None
    disk: int | None


STORED = 4 * (1 + 3)  # bytes a parameter: a model, and a checkpoint with AdamW's state


def stored_by(job: Job) -> int | None:
    """Bytes that a run leaves; None where nobody knows before."""
    size = job.parameters()
    return None if size is None else STORED * size


def expected(question: Question, known: Known, seeds: int, reuse: bool = False) -> Expected:
    """What a question's runs at the scale of `known` would take, runs that stand under two labels once.

    Raises `InputError` as `Question.recipes` does.
    """
    jobs = question.recipes(known.scale, seeds)
    ids = identities(question, known.scale)
    pace = _pace(known)
    keys = {(ids[label].key, seed): label for label, seed in jobs}
    there = {key for key in keys if key in known.runs} if reuse else set()
    costs = [
        _cost(known, ids[label]) or (pace[ids[label].kind] * ids[label].steps if ids[label].kind in pace else None)
        for key, label in keys.items()
        if key not in there
    ]
    seconds = None if any(cost is None for cost in costs) else sum(cost for cost in costs if cost is not None)
    sizes = [stored_by(jobs[label, seed]) for (_, seed), label in keys.items() if (ids[label].key, seed) not in there]
    disk = None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
    return Expected(len(keys) - len(there), len(there), seconds, disk)
