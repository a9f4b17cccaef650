"""An experiment as the report shows it: the question, its runs, and the verdict on each claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sinkscope.experiments import RECIPE_OF, Assertion, Findings, Observed, Question, Variation, verdicts
from sinkscope.report.experiments import names
from sinkscope.statistics.claims import CaseValue, Verdict

FAILED = "failed"
USUAL = ("loss", "sink_0", "strongest", "slot", "norm_ratio")


@dataclass(frozen=True)
class TracedRun(Observed):
    """A run that notes which metrics are read from it."""

    metrics_read: list[str] = field(default_factory=list)

    def __getitem__(self, metric: str) -> float:
        self.metrics_read.append(metric)
        return super().__getitem__(metric)


@dataclass(frozen=True)
class Judged:
    """A verdict, and the metrics that its effect reads (`reads`), by variation.

    `primary`: whether the claim answers the question.
    """

    verdict: Verdict
    reads: Mapping[str, tuple[str, ...]]
    primary: bool = False

    @property
    def part(self) -> str:
        """Its role in the question, in a word."""
        return "primary" if self.primary else "exploratory"


@dataclass(frozen=True)
class ExperimentEntry:
    """An experiment at a scale.

    Attributes:
        findings: None if there are none; `reason` is why.
        base: the fields of the recipe, or task, that is varied.
        shown: metrics of the question, if no others are published or read.
        titles: the job's own names of metrics.
    """

    name: str
    asks: str
    source: str
    scale: str
    variations: tuple[Variation, ...]
    claims: tuple[Judged, ...] = ()
    findings: Findings | None = None
    shared: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    note: str = ""
    shown: tuple[str, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The synthetic task that is varied; "" for a recipe."""
        return str(self.base.get("task", ""))

    @property
    def runs(self) -> list[tuple[str, Observed]]:
        """Every run with its variation's label, in order; one that failed has the status "failed" and the reason."""
        if self.findings is None:
            return []
        labeled: list[tuple[str, Observed]] = []
        for label in dict.fromkeys([*(v.label for v in self.variations), *self.findings.runs, *self.findings.failed]):
            seeds = dict(self.findings.runs.get(label, {}))
            lost = {s: Observed("", FAILED, s, reason=why) for s, why in self.findings.failed.get(label, {}).items()}
            labeled += [(label, run) for _, run in sorted({**lost, **seeds}.items())]
        return labeled

    @property
    def read(self) -> list[str]:
        """The metrics that its claims read, in the order of the claims."""
        read = [metric for judged in self.claims for metrics in judged.reads.values() for metric in metrics]
        return list(dict.fromkeys(read))

    @property
    def published(self) -> list[str]:
        """The metrics with a published value."""
        return list(dict.fromkeys(metric for variation in self.variations for metric in variation.published))

    @property
    def metrics(self) -> list[str]:
        """The metrics of its figures: those with published values, then those its claims read; the loss last.

        Published metrics that its claims read come first, in their order. Without any (claims about curves): the
        `shown` metrics that its runs have.
        """
        both = [metric for metric in self.read if metric in self.published]
        metrics = list(dict.fromkeys([*both, *self.published, *self.read]))
        if not metrics:
            metrics = [metric for metric in self.shown if any(metric in run.metrics for _, run in self.runs)]
        return sorted(metrics or ["sink_0"], key=lambda metric: metric == "loss")

    @property
    def tabled(self) -> list[str]:
        """The metrics of its tables: those its claims read, then the others of `metrics`."""
        return list(dict.fromkeys([*self.read, *self.metrics]))

    def title(self, metric: str) -> str:
        """A metric, or a curve, in the words of its task."""
        return names.title(metric, self.titles)

    @property
    def seconds(self) -> float:
        """The seconds that its runs took."""
        return 0.0 if self.findings is None else self.findings.seconds


def entry(question: Question, findings: Findings | None, scale: str = "nano") -> ExperimentEntry:
    """A question and its findings, judged."""
    reads = [_reads(assertion, findings) for assertion in question.assertions]
    made = zip(verdicts(question, findings, scale), reads, strict=True)
    claims = [Judged(verdict, read, not index) for index, (verdict, read) in enumerate(made)]
    base, titles = _base(question, scale)
    return ExperimentEntry(
        question.name,
        question.asks,
        question.source,
        findings.scale if findings is not None else scale,
        tuple(question.variations),
        tuple(claims),
        findings,
        question.shared,
        base,
        "" if findings is not None else question.not_at.get(scale, "no runs"),
        question.note,
        question.shown,
        titles,
    )


def unknown_entry(findings: Findings) -> ExperimentEntry:
    """Findings of a question that is not known here: its runs, without claims."""
    reason = "its question is in a Python file: pass that file's path too, and its claims are judged"
    variations = tuple(Variation(label) for label in dict.fromkeys([*findings.runs, *findings.failed]))
    return ExperimentEntry(findings.question, "", "", findings.scale, variations, findings=findings, reason=reason)


def runs_of(entries: Iterable[ExperimentEntry]) -> list[Observed]:
    """Every run once, also if experiments share it, and every failed run."""
    runs = [run for each in entries for _, run in each.runs]
    named = {run.run: run for run in runs if run.status != FAILED}
    return [*named.values(), *(run for run in runs if run.status == FAILED)]


def evidence(judged: Judged) -> list[tuple[int | None, CaseValue]]:
    """The evidence for a claim, each case with its seed if it names one."""
    cases = []
    for part in judged.verdict.evidence:
        seed = part.case.removeprefix("seed ").partition(" ")[0]
        cases.append((int(seed) if seed.isdigit() else None, part))
    return cases


def _base(question: Question, scale: str) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The unchanged fields of what is varied, and its names of metrics. Empty at a scale without such a job."""
    if scale not in RECIPE_OF or scale in question.not_at:
        return {}, {}
    job = question.base(scale, {"seed": 0})
    fields = job.model_dump(mode="json")
    return {**fields.get("recipe", {}), **fields}, job.titles


def _reads(assertion: Assertion, findings: Findings | None) -> dict[str, tuple[str, ...]]:
    """The metrics that the effect reads, by variation, in the first seed that has its runs."""
    for seed in range(findings.seeds if findings is not None else 0):
        traced = {label: TracedRun(**vars(run)) for label, run in findings.of_seed(seed).items()}  # type: ignore[union-attr]
        with suppress(KeyError):  # a run that is missing
            assertion.effect(traced)
            return {label: tuple(dict.fromkeys(run.metrics_read)) for label, run in traced.items() if run.metrics_read}
    return {}
