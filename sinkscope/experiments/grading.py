"""Grades of a question's claims, from the runs that its seeds name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import combinations

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.effects import Contrast, SeedWise, Shares
from sinkscope.experiments.findings import Findings
from sinkscope.experiments.observed import TOP, Observed
from sinkscope.experiments.question import Assertion, Question
from sinkscope.experiments.registration import Standing, standing
from sinkscope.statistics.claims import CaseValue, Count, ModelCount, Size, Verdict

Judged = Mapping[str, Sequence[Verdict]]  # by question, on its claims in their order: the first is the primary one
Cells = Mapping[str, Mapping[int, Observed]]
A_SINK = 1.0  # percent of heads: with fewer, no model has a sink
ONE_MODEL = "all runs start from one trained model"
OF_LOSS = 0.1  # nats by which variations may differ in loss without a word in the row


def verdicts(question: Question, findings: Findings | None, scale: str = "nano") -> list[Verdict]:
    """A verdict on each claim of a question; all are open without runs.

    Only runs of the question's seeds count, and a claim is judged once all of them are there: until then it is "open
    (4 of 6 runs)", with the numbers so far. A run that failed, diverged or lacks what is read is left out and counted.
    Claims about runs that start from one trained model stay open: the unit is a trained model. "Confirmed" becomes
    "seen" where the question was not registered before these runs. Raises `InputError` for an effect that reads a run
    of no variation, and for one that raises.
    """
    if findings is None:
        reason = question.not_at.get(scale, "no runs")
        return [assertion.claim.open(reason) for assertion in question.assertions]
    stands = standing_of(question, findings)
    return [_as_registered(_judged_safely(question, assertion, findings), stands) for assertion in question.assertions]


def standing_of(question: Question, findings: Findings | None) -> Standing:
    """Whether the question was registered before the runs of its seeds."""
    runs = (
        [] if findings is None else [run for cells in counting(question, findings).values() for run in cells.values()]
    )
    return standing(question.name, question.registration, question.values_sha256, runs)


def counting(question: Question, findings: Findings) -> dict[str, dict[int, Observed]]:
    """The runs that count: those of the question's seeds, by label and seed."""
    return {
        label: {seed: run for seed, run in findings.runs.get(label, {}).items() if seed in question.seeds_of(label)}
        for label in question.labels
    }


def without_sinks(question: Question, findings: Findings) -> str:
    """A warning where claims are about sinks and no run of any seed has one at any position; empty elsewhere."""
    read = {name for assertion in question.assertions for name in _metrics_read(question, assertion)}
    runs = [run for cells in findings.runs.values() for run in cells.values() if not run.diverged]
    strongest = [run["strongest"] for run in runs if not math.isnan(run["strongest"])]
    if not any(name.startswith(("sink", "strongest", "slot")) for name in read) or not strongest:
        return ""
    slots = [run["slot"] for run in runs if not math.isnan(run["slot"])]
    if max([*strongest, *slots]) >= A_SINK:
        return ""
    return (
        f"no model has a sink: at most {max(strongest):.2g} % of heads at any position, so claims about sinks compare "
        "nothing; train longer, or fix a BOS"
    )


def labels_read(question: Question, assertion: Assertion) -> list[str]:
    """The variations whose runs an effect reads, in the question's order; found by calling it on made-up runs."""
    recording = _probed(question, assertion)
    return [label for label in question.labels if label in recording.read]


def check_apart(question: Question, keys: Mapping[str, str]) -> None:
    """Raises `InputError` where a claim reads two variations of one recipe: their runs are the same models.

    `keys`: the key of each variation's recipe, by label.
    """
    for assertion in question.assertions:
        first: dict[str, str] = {}
        for label in labels_read(question, assertion):
            if label in keys and (same := first.setdefault(keys[label], label)) != label:
                raise InputError(
                    f"experiment '{question.name}', claim '{assertion.claim.name}': variations '{same}' and '{label}' "
                    "are one recipe, so it would count each model twice"
                )


def _check_runs_apart(runs: Cells) -> None:
    """Raises `InputError` where two variations have one run, also in records of runs that are gone."""
    first: dict[str, str] = {}
    for label, cells in runs.items():
        for run in cells.values():
            if run.run and first.setdefault(run.run, label) != label:
                raise InputError(
                    f"variations '{first[run.run]}' and '{label}' have one run, '{run.run}', as two models"
                )


def _judged_safely(question: Question, assertion: Assertion, findings: Findings) -> Verdict:
    try:
        return _judged(question, assertion, findings)
    except InputError:
        raise
    except Exception as error:  # of a function in the question's file
        raise _raised(question, assertion, error) from error


def _judged(question: Question, assertion: Assertion, findings: Findings) -> Verdict:
    effect, notes = assertion.effect, _Notes()
    if isinstance(effect, Contrast | Shares):
        labels = list(effect.labels)
        for label in labels:
            question.seeds_of(label)  # raises for a variation that the question does not have
    else:
        labels = labels_read(question, assertion)
    runs = {label: dict(cells) for label, cells in counting(question, findings).items() if label in labels}
    _check_runs_apart(runs)
    failed = {label: _failed(question, findings, label) for label in labels}
    for label, seeds in failed.items():
        notes.add("failed", label, seeds)
    expected = sum(len(question.seeds_of(label)) - len(failed[label]) for label in labels)
    present = sum(map(len, runs.values()))
    kept = _among(assertion, runs, notes)
    if isinstance(effect, Shares):
        verdict = _count(assertion, effect, kept, notes)
    elif isinstance(effect, Contrast):
        verdict = _size(assertion, effect, kept, notes)
    else:
        verdict = _size_by_seed(question, assertion, kept, notes)
    planned = min(len(question.seeds_of(label)) for label in labels) if labels else 0
    rule = assertion.claim.rule
    if isinstance(rule, Size) and verdict.n and planned < rule.least:  # fewer are enough where some were left out
        others = [part for part in verdict.reason.split("; ") if part and not part.startswith("fewer than")]
        verdict = replace(verdict, grade="open", p=None, reason="; ".join([f"fewer than {rule.least} models", *others]))
    if unread := _not_in_any(question, assertion, kept):
        verdict = replace(verdict, reason="; ".join(filter(None, (verdict.reason, unread))))
    if loss := _loss_gap(assertion, kept):
        verdict = replace(verdict, reason="; ".join(filter(None, (verdict.reason, loss))))
    if question.one_model and present == expected:
        reason = "; ".join(filter(None, (ONE_MODEL, verdict.reason)))
        return replace(verdict, grade="open", p=None, decides_at=None, reason=reason)
    if present < expected:
        among = [phrase for phrase in notes.phrases if phrase.startswith("among")]
        vain = not can_still_decide(question, assertion, findings, verdict)
        told = "the others can no longer decide it" if vain else ""
        early = "; ".join(filter(None, (f"{present} of {expected} runs", told, *among, loss)))
        return replace(verdict, grade="open", p=None, decides_at=None, reason=early, undecidable=vain)
    return verdict


def can_still_decide(question: Question, assertion: Assertion, findings: Findings, verdict: Verdict) -> bool:
    """Whether the runs that a count claim still lacks can decide it, whatever they show. Size claims always may."""
    effect, rule = assertion.effect, assertion.claim.rule
    if not isinstance(effect, Shares) or not isinstance(rule, Count) or not verdict.n:
        return True
    there = counting(question, findings)
    more = [
        sum(len(question.seeds_of(each)) - len(there[each]) - len(_failed(question, findings, each)) for each in group)
        for group in effect.groups
    ]
    return rule.can_still_decide(tuple(map(ModelCount, verdict.k, verdict.n)), more)


def _not_in_any(question: Question, assertion: Assertion, runs: Cells) -> str:
    """A metric that a claim reads and no run has, with the nearest one that they have; empty if there is none."""
    every = [run for cells in runs.values() for run in cells.values() if not run.diverged]
    there = {name for run in every for name in run.metrics}
    read = [name for name in _probed_metrics(question, assertion) if not name.startswith(TOP)]
    if not every or not (lacking := next((name for name in read if name not in there), "")):
        return ""
    near = get_close_matches(lacking, there, 1)
    return f"no run has '{lacking}'{f', nearest: {near[0]}' if near else ''}"


def _count(assertion: Assertion, effect: Shares, runs: Cells, notes: _Notes) -> Verdict:
    counts: list[ModelCount] = []
    cases: list[CaseValue] = []
    for group in effect.groups:
        have, models = 0, 0
        for label in group:
            answers = {seed: effect.has(run) for seed, run in runs.get(label, {}).items()}
            notes.add("not measured", label, [seed for seed, answer in answers.items() if answer is None])
            known = {seed: bool(answer) for seed, answer in answers.items() if answer is not None}
            have, models = have + sum(known.values()), models + len(known)
            where = f" of '{label}'" if len(effect.labels) > 1 else ""
            cases += [CaseValue(f"seed {seed}{where}", float(answer)) for seed, answer in sorted(known.items())]
        counts.append(ModelCount(have, models))
    return assertion.claim.judge(counts, notes.words, cases)


def _size(assertion: Assertion, effect: Contrast, runs: Cells, notes: _Notes) -> Verdict:
    """A sum of means: every run of a variation counts, whether others share its seed or not."""
    values: dict[int, dict[str, float]] = {}
    kept: dict[str, list[Observed]] = {}
    for label in effect.labels:
        parts = {seed: effect.part(label, run) for seed, run in runs.get(label, {}).items()}
        _note_missing(label, parts, runs.get(label, {}), notes)
        known = {seed: value for seed, value in parts.items() if not math.isnan(value)}
        if not known:
            return assertion.claim.open(notes.words or f"no run of '{label}'")
        kept[label] = [runs[label][seed] for seed in known]
        for seed, value in known.items():
            values.setdefault(seed, {})[label] = value
    # Cases need a seed that all labels have; the estimate below uses every run.
    whole = {seed: math.fsum(each.values()) for seed, each in values.items() if len(each) == len(effect.labels)}
    cases = [CaseValue(f"seed {seed}", value + effect.constant) for seed, value in sorted(whole.items())]
    return assertion.claim.judge(effect.over(kept), notes.words, cases)


def _size_by_seed(question: Question, assertion: Assertion, runs: Cells, notes: _Notes) -> Verdict:
    """An effect made within a seed: of the seeds that have all runs which it reads."""
    from sinkscope.statistics.estimates import estimate

    cases: list[CaseValue] = []
    for seed in sorted({seed for cells in runs.values() for seed in cells}):
        recording = _Recording(question, {label: cells[seed] for label, cells in runs.items() if seed in cells})
        try:
            value = assertion.effect(recording)
        except KeyError:
            # Without a missing run the error is the effect's own.
            if not recording.missing:
                raise
            continue
        if recording.missing:
            continue
        if math.isnan(value):
            refused = isinstance(assertion.effect, SeedWise) and not recording.diverged
            what = assertion.effect.refusal if refused else ""  # type: ignore[union-attr]
            notes.add(what or ("diverged" if recording.diverged else "not measured"), "", [seed])
        else:
            cases.append(CaseValue(f"seed {seed}", value))
    if not cases:
        return assertion.claim.open(notes.words or "no seed has every run that is read")
    return assertion.claim.judge(estimate([(1.0, [each.value for each in cases])]), notes.words, cases)


def _among(assertion: Assertion, runs: Cells, notes: _Notes) -> Cells:
    """The runs that have what a conditional claim needs."""
    kept = {label: dict(cells) for label, cells in runs.items()}
    for label, has in assertion.among.items():
        cells = kept.get(label, {})
        having = {seed: run for seed, run in cells.items() if has(run)}
        notes.phrases.append(f"among the {len(having)} of {len(cells)} models of '{label}' with {has}")
        if label in kept:
            kept[label] = having
    return kept


def _note_missing(label: str, parts: Mapping[int, float], runs: Mapping[int, Observed], notes: _Notes) -> None:
    blank = [seed for seed, value in parts.items() if math.isnan(value)]
    notes.add("diverged", label, [seed for seed in blank if runs[seed].diverged])
    notes.add("not measured", label, [seed for seed in blank if not runs[seed].diverged])


def _loss_gap(assertion: Assertion, runs: Cells) -> str:
    """By how much losses of compared variations differ at most, if by more than .1 nats and the claim reads none.

    A model that has learned less has a weaker sink for that reason alone.
    """
    effect = assertion.effect
    groups = effect.groups if isinstance(effect, Shares) else [(label,) for label in getattr(effect, "labels", ())]
    if len(groups) < 2:
        return ""
    read = _names_read(effect)  # type: ignore[arg-type]
    if any(name.startswith(("loss", "gap", "train_loss")) for name in read):
        return ""
    # The loss on the text on which the sink is read.
    loss_read = "train_loss" if read and all(name.endswith("/training") for name in read) else "loss"
    means: list[list[float]] = []
    for group in groups:
        means.append([])
        for label in group:
            losses = [run[loss_read] for run in runs.get(label, {}).values()]
            if known := [loss for loss in losses if not math.isnan(loss)]:
                means[-1].append(math.fsum(known) / len(known))
    pairs = [(a, b) for one, other in combinations(means, 2) for a in one for b in other]
    differ = max((abs(a - b) for a, b in pairs), default=0.0)
    return f"losses differ by {differ:.2f} nats" if differ > OF_LOSS else ""


def _names_read(effect: Contrast | Shares) -> list[str]:
    """The metrics that an effect reads."""
    watched = _Metrics()
    run = Observed("", "finished", 0, watched)
    with suppress(Exception):
        # Made-up runs may make it fail; what it has asked for until then is known.
        effect(dict.fromkeys(effect.labels, run))
    return watched.names


def _as_registered(verdict: Verdict, stands: Standing) -> Verdict:
    """ "Confirmed" is for claims that were registered before their runs; else it is "seen"."""
    if verdict.grade != "confirmed" or stands.registered:
        return verdict
    return replace(verdict, grade="seen")


def _failed(question: Question, findings: Findings, label: str) -> list[int]:
    """The seeds whose runs failed, and are not there by now."""
    there = findings.runs.get(label, {})
    return [seed for seed in findings.failed.get(label, {}) if seed in question.seeds_of(label) and seed not in there]


@dataclass
class _Notes:
    """What was left out of a claim, and why."""

    phrases: list[str] = field(default_factory=list)

    def add(self, what: str, label: str, seeds: Sequence[int]) -> None:
        if seeds:
            numbers = ", ".join(map(str, sorted(seeds)))
            where = f" of '{label}'" if label else ""
            self.phrases.append(f"left out: seed{'s' if len(seeds) > 1 else ''} {numbers}{where} ({what})")

    @property
    def words(self) -> str:
        """In a phrase; seeds that are left out for one reason are named together."""
        return "; ".join(self.phrases)


class _Recording(Mapping[str, Observed]):
    """The runs of a seed; it notes which an effect reads, and which of these are missing or diverged."""

    def __init__(self, question: Question, runs: Mapping[str, Observed]) -> None:
        self.question, self.runs = question, runs
        self.read: set[str] = set()
        self.missing: list[str] = []
        self.diverged: list[str] = []

    def __getitem__(self, label: str) -> Observed:
        self.read.add(label)
        if label not in self.runs:
            if label not in self.question.labels:
                raise unknown(f"variation of experiment '{self.question.name}'", label, self.question.labels)
            self.missing.append(label)
        elif self.runs[label].diverged:
            self.diverged.append(label)
        return self.runs[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


def _probed(question: Question, assertion: Assertion) -> _Recording:
    """An effect called on made-up runs, which note what it asks for."""
    run = Observed("", "finished", 0, _Metrics(), tuple(range(5)), _Falling())
    recording = _Recording(question, dict.fromkeys(question.labels, run))
    try:
        assertion.effect(recording)
    except InputError:  # a label of no variation
        raise
    except (AttributeError, NameError, ImportError) as error:  # which no numbers can bring about
        raise _raised(question, assertion, error) from error
    except Exception:  # of the made-up numbers: what it read is known
        pass
    if not recording.read:
        raise InputError(f"experiment '{question.name}', claim '{assertion.claim.name}': it reads no run")
    return recording


def _raised(question: Question, assertion: Assertion, error: Exception) -> InputError:
    claim = f"experiment '{question.name}', claim '{assertion.claim.name}'"
    return InputError(f"{claim}: its function raises {type(error).__name__}: {error}")


def _probed_metrics(question: Question, assertion: Assertion) -> list[str]:
    """The metrics that an effect reads, without its curves."""
    run = next(iter(_probed(question, assertion).runs.values()))
    return list(run.metrics.names)  # type: ignore[attr-defined]


def _metrics_read(question: Question, assertion: Assertion) -> list[str]:
    """The metrics and curves that an effect reads."""
    run = next(iter(_probed(question, assertion).runs.values()))
    return [*run.metrics.names, *run.curves.names]  # type: ignore[attr-defined]


class _Metrics(dict[str, float]):
    """Metrics that are all 1, and note their names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def get(self, key: str, default: object = None) -> float:
        self.names.append(key)
        return 1.0


class _Falling(dict[str, tuple[float, ...]]):
    """Curves that all fall to 1, and note their names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def get(self, key: str, default: object = None) -> tuple[float, ...]:
        self.names.append(key)
        return (5.0, 4.0, 3.0, 2.0, 1.0)
