"""The page of experiments: the verdicts, and below them each experiment with its runs and curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sinkscope.report.experiments import figures, tables
from sinkscope.report.experiments.entry import ExperimentEntry, Judged, runs_of
from sinkscope.report.experiments.names import cost, counted, effect, sizes
from sinkscope.report.page import Headline, Section, Widget
from sinkscope.statistics.claims import GRADES, tally
from sinkscope.theme import INK, template

SCRIPTS, STYLES = ("experiments.js",), ("experiments.css",)
MOST_METRICS = 5
LEAD = (
    "Questions about attention sinks, each a set of training runs and of claims. Confirmed and not seen: decided at "
    "1 %, one-sided. Seen: as confirmed, but the claim was not registered before its runs. The sink rate is the "
    "percentage of (layer, head) pairs in which a position receives more than 0.3 of the attention."
)
ABOUT_VERDICTS = (
    "Each row is a claim and links to the experiment that decides it; claims without runs come last. What is asked is "
    "in the units of the metric; found is the number of models, or the effect with its 98 % interval; cost is that of "
    "all runs of the experiment, which others may share."
)
ABOUT_EXPERIMENTS = (
    "Open an experiment for its configurations, its values and the published ones, the curves, and the numbers behind "
    "each claim. Published values come from other models, most of them larger: they have their own axis, and only the "
    "direction can be compared."
)
ABOUT_ABSENT = "Questions without runs, each with the reason. Open one for what it would vary and what is published."
ABOUT_RUNS = (
    "Grouped by the fields in which their recipes differ. Open them for the configurations, the last evaluation of "
    "each run, and the curves."
)
ABOUT_LOSS = (
    "The same evaluations against the loss, which falls to the right. Models on a vertical line have equal loss: an "
    "operation that learns slowly may have a low sink rate at equal steps for that reason alone."
)


def headlines(entries: Sequence[ExperimentEntry]) -> list[Headline]:
    """The number of claims of each grade, and the cost of all runs."""
    counts = Counter(judged.verdict.grade for each in entries for judged in each.claims)
    runs = runs_of(entries)
    cards = [Headline(str(counts[grade]), f"claims {grade}") for grade in GRADES if counts[grade]]
    return [*cards, Headline(cost(sum(run.seconds for run in runs)), f"of training, {counted(len(runs), 'run')}")]


def experiment_sections(entries: Sequence[ExperimentEntry]) -> list[Section]:
    """The verdicts, the experiments, then what was not run."""
    places = {id(each): f"x{index}" for index, each in enumerate(entries)}
    ran = [each for each in entries if each.findings is not None]
    absent = [each for each in entries if each.findings is None]
    sections = [Section("Verdicts", ABOUT_VERDICTS, widget=Widget("verdicts.html", {}, _verdicts(entries, places)))]
    for heading, about, group in (
        ("Experiments", ABOUT_EXPERIMENTS, ran),
        ("Not run at this scale", ABOUT_ABSENT, absent),
    ):
        if group:
            sections.append(_section(heading, about, {places[id(each)]: each for each in group}))
    return sections


def runs_section(entry: ExperimentEntry) -> Section:
    """Many training runs, grouped by what differs in their recipes, as an experiment without claims."""
    return _section("Training runs", ABOUT_RUNS, {"runs": entry})


def provenance(entries: Iterable[ExperimentEntry]) -> dict[str, str]:
    """The versions and machines of the findings, and the cost of each."""
    ran = [each for each in entries if each.findings is not None]
    return _made_by(ran) | {
        f"experiment {each.name}, {each.scale}": " · ".join(
            [counted(each.findings.seeds, "seed"), counted(len(each.runs), "run"), cost(each.seconds)]
        )
        for each in ran
        if each.findings is not None
    }


def _made_by(entries: Iterable[ExperimentEntry]) -> dict[str, str]:
    """Versions of packages and kinds of machines, each once."""
    versions: dict[str, dict[str, None]] = {}
    machines: dict[str, None] = {}
    for each in entries:
        provenance = each.findings.provenance if each.findings is not None else {}
        for name, version in provenance.get("versions", {}).items():
            versions.setdefault(str(name), {})[str(version)] = None
        for host in provenance.get("hosts", ()):
            machines[", ".join(f"{name} {value}" for name, value in host.items() if name != "runs")] = None
    wording = " · ".join(f"{name} {', '.join(each)}" for name, each in versions.items())
    lines = {"versions": wording, "machines": " · ".join(machines)}
    return {name: line for name, line in lines.items() if line}


def _section(heading: str, about: str, entries: dict[str, ExperimentEntry]) -> Section:
    data = {f"{place}-data": _data(each) for place, each in entries.items()}
    values = {"experiments": [_experiment(each, place) for place, each in entries.items()]}
    return Section(heading, about, widget=Widget("experiments.html", data, values))


def _verdicts(entries: Sequence[ExperimentEntry], places: dict[int, str]) -> dict[str, Any]:
    """The table over all claims; those that were not run come last."""
    several = len({each.scale for each in entries}) > 1
    claims = [(each, index, judged) for each in entries for index, judged in enumerate(each.claims)]
    claims.sort(key=lambda claim: claim[2].verdict.value is None)  # a stable sort
    rows = [tables.verdict_row(each, judged, f"{places[id(each)]}-c{index}", several) for each, index, judged in claims]
    counts = Counter(judged.verdict.grade for each in entries for judged in each.claims)
    return {
        "choices": [("", f"all {len(rows)}"), *((each, f"{counts[each]} {each}") for each in GRADES if counts[each])],
        "columns": tables.VERDICT_COLUMNS,
        "numbers": [column in ("models", "cost") for column in tables.VERDICT_COLUMNS],
        "width": tables.VERDICTS_WIDTH,
        "rows": rows,
    }


def _experiment(entry: ExperimentEntry, place: str) -> dict[str, Any]:
    """An experiment as the template reads it; missing parts are empty."""
    names = figures.shown_curves(entry)
    has_values = bool(entry.runs) or any(variation.published for variation in entry.variations)
    links = {(label, run.seed): f"{place}-r{index}" for index, (label, run) in enumerate(entry.runs)}
    return {
        "place": place,
        "name": entry.name,
        "asks": entry.asks,
        "tally": tally(judged.verdict for judged in entry.claims) if entry.claims and entry.findings else entry.reason,
        "facts": " · ".join(filter(None, _facts(entry))),
        "sentences": list(filter(None, _sentences(entry))),
        "configurations": tables.configurations(entry),
        "doses": [entry.title(metric) for metric in _shown(entry)] if has_values else [],
        "training": " and ".join(map(entry.title, names)),
        "equal_loss": ABOUT_LOSS if figures.compares_losses(names) else "",
        "claims": [_claim(entry, judged, f"{place}-c{index}", links) for index, judged in enumerate(entry.claims)],
        "runs": tables.runs_table(entry, place) if entry.runs else None,
    }


def _facts(entry: ExperimentEntry) -> list[str]:
    facts = [entry.source, f"scale {entry.scale}" if entry.scale else ""]
    if entry.findings is not None:
        unfinished = Counter(run.status for _, run in entry.runs if run.status != "finished")
        facts += [counted(entry.findings.seeds, "seed"), counted(len(entry.runs), "run"), cost(entry.seconds)]
        facts += [f"{many} {status}" for status, many in unfinished.items()]
    return facts


def _sentences(entry: ExperimentEntry) -> list[str]:
    hidden = len(entry.variations) - len(figures.drawn(entry))
    return [
        entry.note,
        f"The figures leave out the last {hidden} variations; the tables do not." if hidden > 0 else "",
        f"{entry.reason[:1].upper()}{entry.reason[1:]}." if entry.reason else "",
    ]


def _claim(entry: ExperimentEntry, judged: Judged, place: str, links: dict[tuple[str, int], str]) -> dict[str, Any]:
    verdict, claim = judged.verdict, judged.verdict.claim
    reason = verdict.graded.removeprefix(verdict.grade)
    measured = f"found {effect(verdict)}, {sizes(verdict)} models" if verdict.value is not None else "no numbers"
    return {
        "place": place,
        "grade": verdict.grade,
        "look": tables.look_of(verdict.grade),
        "name": claim.name,
        "statement": claim.statement,
        "facts": f"{judged.part}; asked {claim.rule}, {measured}{reason} · {claim.source}",
        "numbers": tables.claim_numbers(entry, judged, links) if verdict.evidence else None,
    }


def _data(entry: ExperimentEntry) -> dict[str, Any]:
    """What the page's script draws when the experiment is opened."""
    drawings = {f"dose{index}": figures.dose_response(entry, metric) for index, metric in enumerate(_shown(entry))}
    names = figures.shown_curves(entry)
    if names:
        drawings["training"] = figures.over_training(entry)
    if figures.compares_losses(names):
        drawings["loss"] = figures.at_equal_loss(entry)
    runs = [{"name": f"{label}, seed {run.seed}", "curves": figures.curves(run, names)} for label, run in entry.runs]
    return {"figures": drawings, "runs": runs, "curves": names, "template": _template(), "color": INK}


def _shown(entry: ExperimentEntry) -> list[str]:
    return entry.metrics[:MOST_METRICS]


@cache
def _template() -> dict[str, Any]:
    return dict(json.loads(template().to_json()))
