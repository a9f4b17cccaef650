"""What is known: every run in the records of a scale, whatever question it was made for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sinkscope.errors import InputError, unknown
from sinkscope.experiments import findings as kept
from sinkscope.experiments.findings import Findings
from sinkscope.experiments.identities import Identity, identities
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import SCALES, Question
from sinkscope.experiments.questions import QUESTIONS

SHIPPED = Path(__file__).parent / "records"
Key = tuple[str, int]  # an identity and a seed


@dataclass(frozen=True)
class Known:
    """The records of a scale by question, and their runs by identity and seed.

    One run has one set of numbers, whichever question asks. `damaged`: why a question's record could not be read.
    `notes`: runs that stand in records and are not judged, or not everywhere, and why.
    """

    scale: str
    records: Mapping[str, Findings]
    runs: Mapping[Key, Observed] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, question: Question) -> Findings | None:
        """The findings of a question: its own record, and the runs that other questions' records hold of it.

        None where there is no run of it at all. Raises `InputError` where its own record is damaged.
        """
        if question.name in self.damaged:
            raise InputError(self.damaged[question.name])
        own = self.records.get(question.name)
        runs = {label: dict(seeds) for label, seeds in own.runs.items()} if own else {}
        for label, one in identities(question, self.scale).items():
            found = {seed: run for (key, seed), run in self.runs.items() if key == one.key}
            merged = found | runs.get(label, {})
            runs[label] = {seed: _as_pooled(merged[seed], found.get(seed)) for seed in sorted(merged)}
        if own is None and not any(runs.values()):
            return None
        failed = _still_failed(own.failed, runs) if own else {}
        seeds = max([own.seeds if own else 0, *(seed + 1 for found in runs.values() for seed in found)])
        return Findings(question.name, self.scale, seeds, runs, failed, own.provenance if own else {})


def known(
    folders: Iterable[Path], scale: str, questions: Mapping[str, Question] = QUESTIONS, own: Sequence[Question] = ()
) -> Known:
    """What the records in these folders hold; where two hold a run, the earlier folder's counts.

    Of one run in two layouts the newer counts, which holds more. A run that was made twice, with different numbers as
    another machine or another number of threads gives, counts as it was made first: the repetition is no further seed.
    It is told by when it began, and was made before all others where it does not say so; where none does, the earlier
    question's counts. `own`: a user's questions beside the `questions`, whose records are read too. A run of a layout
    whose numbers do not mean what they mean today is left to its own question. Raises `InputError` for an unknown
    scale.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    asked = {**questions, **{question.name: question for question in own}}
    places: list[dict[str, Findings]] = []
    damaged: dict[str, str] = {}
    for folder in folders:
        places.append({})
        _require_folders(folder, folder / scale)
        for name in sorted(path.stem for path in (folder / scale).glob("*.json")):
            try:
                found = kept.read(folder, name, scale)
            except InputError as error:
                damaged.setdefault(name, str(error))
                continue
            if found is not None:
                places[-1][name] = found
    return _pooled(places, scale, asked, damaged)


def _require_folders(*paths: Path) -> None:
    for path in paths:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is no folder: records are files in folders by scale")


def pooled(
    records: Mapping[str, Findings],
    scale: str,
    questions: Mapping[str, Question] = QUESTIONS,
    damaged: Mapping[str, str] | None = None,
) -> Known:
    """Records of one scale, by question, taken together."""
    return _pooled([records], scale, questions, damaged or {})


def _pooled(
    places: Sequence[Mapping[str, Findings]], scale: str, questions: Mapping[str, Question], damaged: Mapping[str, str]
) -> Known:
    """Records of several folders, the first of which comes first."""
    runs: dict[Key, Observed] = {}
    notes: list[str] = []
    merged: dict[str, Findings] = {}
    stands: dict[Key, str] = {}
    for records in places:
        here: dict[Key, Observed] = {}
        for name, question in questions.items():
            if name in records:
                notes += _pool(here, records[name], identities(question, scale), runs, stands)
        runs = here | {key: _newer(run, here.get(key)) for key, run in runs.items()}
        for name, found in records.items():
            merged[name] = _merged(merged[name], found) if name in merged else found
    return Known(scale, merged, runs, damaged, tuple(notes))


def _merged(first: Findings, second: Findings) -> Findings:
    """Two records of one question; of a run that both have, the first's."""
    runs = {}
    for label in dict.fromkeys([*first.runs, *second.runs]):
        one, other = first.runs.get(label, {}), second.runs.get(label, {})
        runs[label] = {seed: _newer(run, other.get(seed)) for seed, run in sorted({**other, **one}.items())}
    failed = _still_failed({**second.failed, **first.failed}, runs)
    provenance = first.provenance if first.runs else second.provenance
    return Findings(first.question, first.scale, max(first.seeds, second.seeds), runs, failed, provenance)


def _still_failed(
    failed: Mapping[str, Mapping[int, str]], runs: Mapping[str, Mapping[int, Observed]]
) -> dict[str, dict[int, str]]:
    left = {
        label: {seed: why for seed, why in seeds.items() if seed not in runs.get(label, {})}
        for label, seeds in failed.items()
    }
    return {label: seeds for label, seeds in left.items() if seeds}


def _pool(
    runs: dict[Key, Observed],
    record: Findings,
    ids: Mapping[str, Identity],
    first: Mapping[Key, Observed],
    stands: dict[Key, str],
) -> Iterator[str]:
    """Adds a record's runs to those of its folder; what cannot be added, in words.

    `first`: runs of earlier folders. `stands`: the question in whose record a run that counts stands.
    """
    for label, seeds in record.runs.items():
        if label not in ids:
            yield f"{record.question}: '{label}' is none of its variations: the runs that stand there are not judged"
            continue
        one = ids[label]
        for seed, run in seeds.items():
            said = f"{record.question}, {label}, seed {seed}"
            if run.started and not run.began:
                yield f"{said}: it says that it began {run.started}: its clock was wrong, so nobody knows when"
            if not one.reads(run.layout):
                yield f"{said}: read in layout {run.layout}, not {one.layout}: judged in its own question alone"
                continue
            key = (one.key, seed)
            known = runs.setdefault(key, run)
            runs[key] = _first(known, run)
            before = first.get(key, known)
            other = stands.setdefault(key, record.question)
            if key not in first and runs[key] is not known:
                stands[key] = record.question
            if before.run != run.run:
                yield f"{said}: made by another version of the code or of the text ({run.run}, not {before.run})"
            elif not before.same_training(run) or (before.layout == run.layout and not before.agrees(run)):
                beside = "in an earlier folder" if other == record.question else f"in the record of '{other}'"
                counts = "there" if stands[key] == other else "here"
                yield f"{said}: the run {run.run} stands {beside} too, with different numbers; those {counts} count"


def _as_pooled(run: Observed, pooled: Observed | None) -> Observed:
    """A question's own run with the numbers that it has in all questions; another version's stays as it is."""
    if pooled is None or pooled.run != run.run:
        return run
    return pooled if pooled.layout >= run.layout or not run.same_training(pooled) else run


def _first(run: Observed, other: Observed) -> Observed:
    """Of one run the newer layout; of one that was made twice that which began first, `run` where none says when."""
    if run.run == other.run and not run.same_training(other):
        return other if _when(other) < _when(run) else run
    return _newer(run, other)


def _when(run: Observed) -> tuple[bool, str]:
    """Those that do not say when they began are of before runs said so; wrong clocks come after all others."""
    return bool(run.started and not run.began), run.began


def _newer(run: Observed, other: Observed | None) -> Observed:
    """The same run in a newer layout, where there is one."""
    return other if other is not None and other.layout > run.layout and run.same_training(other) else run
