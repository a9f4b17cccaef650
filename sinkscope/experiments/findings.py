"""What an experiment found: its runs, its verdicts, its provenance, as one JSON record."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.contrasts import Contrast
from sinkscope.experiments.equal_loss import SeedWise
from sinkscope.experiments.observed import NewerRecord, Observed
from sinkscope.experiments.question import Assertion, Question
from sinkscope.files import write_json
from sinkscope.statistics.claims import Evidence, Verdict

Judged = Mapping[str, Sequence[Verdict]]  # by question, on its claims in their order: the first is the primary one
SEEN = "left out: seen before this was asked"


@dataclass(frozen=True)
class Findings:
    """The runs of a question at a scale, by label and seed. `failed`: why runs are missing, by label and seed."""

    question: str
    scale: str
    seeds: int
    runs: Mapping[str, Mapping[int, Observed]]
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def of_seed(self, seed: int) -> dict[str, Observed]:
        """The runs of a seed, as far as there are any."""
        return {label: seeds[seed] for label, seeds in self.runs.items() if seed in seeds}

    @property
    def seconds(self) -> float:
        """What the runs cost together; one that stands under two labels counts once."""
        return math.fsum({run.run: run.seconds for seeds in self.runs.values() for run in seeds.values()}.values())

    @property
    def cost(self) -> dict[str, int | float]:
        """How many runs there are, their seconds together, and a run's on average."""
        count = len({run.run for seeds in self.runs.values() for run in seeds.values()})
        return {
            "runs": count,
            "seconds": round(self.seconds, 1),
            "seconds_per_run": round(self.seconds / max(1, count), 1),
        }

    def same(self, other: Findings) -> bool:
        """Whether all is the same, what is unknown included."""
        cells, others = self._cells(), other._cells()
        return (
            (self.question, self.scale, self.seeds) == (other.question, other.scale, other.seeds)
            and (self.failed, self.provenance) == (other.failed, other.provenance)
            and list(cells) == list(others)
            and all(run.same(others[cell]) for cell, run in cells.items())
        )

    def _cells(self) -> dict[tuple[str, int], Observed]:
        return {(label, seed): run for label, seeds in self.runs.items() for seed, run in seeds.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data."""
        return {
            "question": self.question,
            "scale": self.scale,
            "seeds": self.seeds,
            "runs": {
                label: {str(seed): run.to_dict() for seed, run in seeds.items()} for label, seeds in self.runs.items()
            },
            "failed": {label: {str(seed): why for seed, why in seeds.items()} for label, seeds in self.failed.items()},
            "cost": self.cost,
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Findings:
        """Back from plain data. Raises `InputError` for data of another form."""
        try:
            runs = {
                label: {int(seed): Observed.from_dict(run) for seed, run in seeds.items()}
                for label, seeds in data["runs"].items()
            }
            for label, seeds in runs.items():
                for seed, run in seeds.items():
                    if run.seed != seed:
                        raise InputError(f"'{label}', seed {seed}: this is the run of seed {run.seed}, {run.run}")
            failed = {
                label: {int(seed): str(why) for seed, why in seeds.items()} for label, seeds in data["failed"].items()
            }
            return cls(data["question"], data["scale"], int(data["seeds"]), runs, failed, dict(data["provenance"]))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"this is no record of an experiment: {type(error).__name__}: {error}") from error


class _Asked(Mapping[str, Observed]):
    """The runs of a seed, which notes those that an effect asked for: the missing ones, and those that diverged."""

    def __init__(self, question: Question, runs: Mapping[str, Observed]) -> None:
        self.question, self.runs = question, runs
        self.asked: set[str] = set()
        self.missing: list[str] = []
        self.diverged: list[str] = []

    def __getitem__(self, label: str) -> Observed:
        self.asked.add(label)
        if label not in self.runs:
            labels = [variation.label for variation in self.question.variations]
            if label not in labels:
                raise unknown(f"variation of experiment '{self.question.name}'", label, labels)
            self.missing.append(label)
        elif self.runs[label].diverged:
            self.diverged.append(label)
        return self.runs[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


def verdicts(question: Question, findings: Findings | None, scale: str = "nano") -> list[Verdict]:
    """A verdict on each claim of a question, from what was found; "not run at this scale" without it.

    A claim about a sum of means (`Contrast`), such as a difference of two runs, is judged on all runs of a variation.
    Any other is judged on the seeds that have the runs which its effect reads; a seed without one of them is left out,
    and the reason names it. A run that diverged is there: an effect that its numbers cannot tell is NaN and undecided.
    Raises `InputError` for an effect that reads a run of no variation.
    """
    if findings is None:
        reason = question.not_at.get(scale, "no runs")  # type: ignore[call-overload]
        return [assertion.claim.not_run(reason) for assertion in question.assertions]
    return [_judged(question, assertion, findings) for assertion in question.assertions]


def _judged(question: Question, assertion: Assertion, findings: Findings) -> Verdict:
    if isinstance(assertion.effect, Contrast):
        return _over_runs(question, assertion, assertion.effect, findings)
    evidence: list[Evidence] = []
    notes: dict[str, list[int]] = {}
    known = {seed for label in labels_read(question, assertion) for seed in findings.runs.get(label, {})}
    first = assertion.first_seed(findings.scale)
    if seen := sorted(seed for seed in known if seed < first):
        notes[SEEN] = seen
    for seed in range(first, findings.seeds):
        asked = _Asked(question, findings.of_seed(seed))
        try:
            value = assertion.effect(asked)
        except KeyError:
            value = math.nan
            if not asked.missing:
                raise
        if asked.missing:
            notes.setdefault(f"left out: no run of '{asked.missing[0]}'", []).append(seed)
            continue
        evidence.append(Evidence(f"seed {seed}", value))
        if math.isnan(value) and asked.diverged:
            notes.setdefault(f"undecided: '{asked.diverged[0]}' diverged", []).append(seed)
        elif math.isnan(value) and isinstance(assertion.effect, SeedWise) and assertion.effect.refuses(asked):
            notes.setdefault(f"refused: {assertion.effect.refusal}", []).append(seed)
    return assertion.claim.judge(evidence, "; ".join(f"{_named(seeds)} {what}" for what, seeds in notes.items()))


def _over_runs(question: Question, assertion: Assertion, effect: Contrast, findings: Findings) -> Verdict:
    """The verdict on a sum of means: every run of a variation counts, whether others share its seed or not.

    A finished run that was read before the metric was kept has no value, and is left out.
    """
    claim, first = assertion.claim, assertion.first_seed(findings.scale)
    labels = [variation.label for variation in question.variations]
    runs: dict[str, list[Observed]] = {}
    values: dict[int, dict[str, float]] = {}
    notes: list[str] = []
    for label in effect.labels:
        if label not in labels:
            raise unknown(f"variation of experiment '{question.name}'", label, labels)
        known = sorted(findings.runs.get(label, {}).items())
        if seen := [seed for seed, _ in known if seed < first]:
            notes.append(f"{_named(seen)} of '{label}' {SEEN}")
        found = {seed: (run, effect.of(label, run)) for seed, run in known if seed >= first}
        if blank := [seed for seed, (run, value) in found.items() if math.isnan(value) and not run.diverged]:
            why = next((f" ({found[seed][0].reason})" for seed in blank if found[seed][0].reason), "")
            notes.append(f"{_named(blank)} left out: not measured in '{label}'{why}")
        runs[label] = [run for seed, (run, _) in found.items() if seed not in blank]
        if gone := [seed for seed, (run, _) in found.items() if run.diverged]:
            notes.append(f"{_named(gone)} undecided: '{label}' diverged")
        if not runs[label]:
            return claim.not_run("; ".join(notes) if known else f"no run of '{label}'")
        for seed, (_, value) in found.items():
            values.setdefault(seed, {})[label] = value
    whole = {seed: math.fsum(each.values()) for seed, each in values.items() if len(each) == len(effect.labels)}
    evidence = [Evidence(f"seed {seed}", value + effect.constant) for seed, value in sorted(whole.items())]
    return claim.judge(evidence, "; ".join(notes), over=effect.over(runs))


def labels_read(question: Question, assertion: Assertion) -> list[str]:
    """The variations whose runs an effect reads, in the question's order, seen on made-up runs."""
    runs = {variation.label: _made_up() for variation in question.variations}
    asked = _Asked(question, runs)
    with suppress(KeyError, ArithmeticError, ValueError):
        assertion.effect(asked)
    return [label for label in runs if label in asked.asked]


def _made_up() -> Observed:
    return Observed("", "finished", 0, _Ones(), tuple(range(5)), _Falling())


class _Ones(dict[str, float]):
    """Metrics that are all 1."""

    def get(self, key: str, default: object = None) -> float:
        return 1.0


class _Falling(dict[str, tuple[float, ...]]):
    """Curves that all fall to 1."""

    def get(self, key: str, default: object = None) -> tuple[float, ...]:
        return (5.0, 4.0, 3.0, 2.0, 1.0)


def _named(seeds: list[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def path_of(folder: Path, question: str, scale: str) -> Path:
    """Where the findings of a question at a scale are kept. Raises `InputError` for a name that is none of a file."""
    if not question or Path(question).name != question:
        raise InputError(
            f"experiment '{question}': its name is a file's name too, which must hold no '/' and not be empty"
        )
    return folder / scale / f"{question}.json"


def write(folder: Path, findings: Findings) -> Path:
    """Keep findings, atomically; return where."""
    path = path_of(folder, findings.question, findings.scale)
    write_json(path, findings.to_dict())
    return path


def read(folder: Path, question: str, scale: str) -> Findings | None:
    """The findings of a question at a scale, None where there are none. Raises `InputError` for a damaged file."""
    path = path_of(folder, question, scale)
    if not path.exists():
        return None
    try:
        found = Findings.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except NewerRecord as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except (OSError, ValueError, RecursionError, InputError) as error:
        raise InputError(f"cannot read {path}: {error}; move it away, and `experiment run` makes it again") from error
    if (found.question, found.scale) != (question, scale):
        raise InputError(f"cannot read {path}: it holds '{found.question}' at scale '{found.scale}'; move it there")
    return found


@dataclass
class Reading:
    """The findings of a question at a scale as they are whenever asked; read again where the file is another one.

    Files are replaced whole, so that one of the same inode, size and time holds the same. What is read is shared: only
    read.
    """

    folder: Path
    question: str
    scale: str
    _read: tuple[tuple[int, int, int], Findings | None] | None = None

    def now(self) -> Findings | None:
        """As `read`."""
        try:
            there = path_of(self.folder, self.question, self.scale).stat()
        except OSError:
            return read(self.folder, self.question, self.scale)
        state = there.st_ino, there.st_size, there.st_mtime_ns
        if self._read is None or self._read[0] != state:
            self._read = state, read(self.folder, self.question, self.scale)
        return self._read[1]


def recorded(folder: Path, question: str, scale: str) -> dict[str, tuple[Observed, Findings]]:
    """All runs in the records of a scale, by name, each with its record: these need not be made again.

    A run that stands in several records is taken from the question's own where that has it. A damaged record of another
    question is passed over: that question's own commands report it.
    """
    path = path_of(folder, question, scale)
    names = sorted((other.stem for other in path.parent.glob("*.json")), key=lambda name: (name != question, name))
    runs: dict[str, tuple[Observed, Findings]] = {}
    for name in names:
        try:
            record = read(folder, name, scale)
        except InputError:
            if name == question:
                raise
            continue
        if record is None:  # removed meanwhile
            continue
        for run in (run for seeds in record.runs.values() for run in seeds.values()):
            runs.setdefault(run.run, (run, record))
    return runs
