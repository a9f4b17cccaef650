"""The page of experiments: verdicts over all of them, and from each verdict down to its runs and their curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from typing import Any

from sinkscope.report.experiments import figures, tables
from sinkscope.report.experiments.entry import Entry, Judged, runs_of
from sinkscope.report.experiments.names import cost, counted, effect, sizes
from sinkscope.report.page import Headline, Page, Section, Widget, render
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
    "Open an experiment for its configurations side by side, its values beside the published ones, the curves, and "
    "what decided each claim. Published values come from other models, most of them larger: they have an axis of their "
    "own, and what can be compared is the direction."
)
ABOUT_ABSENT = (
    "What was asked and not run, each with the reason. Open one for what it would vary and what is published."
)
ABOUT_RUNS = (
    "Grouped by the fields in which their recipes differ. Open them for the configurations side by side, the last "
    "evaluation of each, and the curves."
)
ABOUT_LOSS = (
    "The same evaluations against the loss, which falls to the right. On a vertical line the models have equal loss: "
    "an operation that learns slowly has a low sink rate at equal steps for that reason alone."
)


def experiment_page(entries: Sequence[Entry], title: str = "Attention sinks: the experiments") -> str:
    """The page of experiments as HTML text."""
    return render(experiments_page(entries, title))


def experiments_page(entries: Sequence[Entry], title: str = "Attention sinks: the experiments") -> Page:
    """The page of experiments."""
    facts = provenance(entries)
    return Page(title, LEAD, headlines(entries), experiment_sections(entries), facts, SCRIPTS, STYLES)


def headlines(entries: Sequence[Entry]) -> list[Headline]:
    """How many claims have each grade, and what all runs cost."""
    counts = Counter(judged.verdict.grade for each in entries for judged in each.claims)
    runs = runs_of(entries)
    cards = [Headline(str(counts[grade]), f"claims {grade}") for grade in GRADES if counts[grade]]
    return [*cards, Headline(cost(sum(run.seconds for run in runs)), f"of training, {counted(len(runs), 'run')}")]


def experiment_sections(entries: Sequence[Entry]) -> list[Section]:
    """What is known first: the verdicts, the experiments; then what was not run."""
    places = {id(each): f"x{index}" for index, each in enumerate(entries)}
    ran = [each for each in entries if each.findings is not None]
    absent = [each for each in entries if each.findings is None]
    found = [Section("Verdicts", ABOUT_VERDICTS, widget=Widget(_verdicts(entries, places), {}))]
    for heading, about, group in (
        ("Experiments", ABOUT_EXPERIMENTS, ran),
        ("Not run at this scale", ABOUT_ABSENT, absent),
    ):
        if group:
            found.append(_section(heading, about, {places[id(each)]: each for each in group}))
    return found


def runs_section(entry: Entry) -> Section:
    """Many training runs, grouped by what differs in their recipes, as an experiment without claims."""
    return _section("Training runs", ABOUT_RUNS, {"runs": entry})


def provenance(entries: Iterable[Entry]) -> dict[str, str]:
    """What made the findings, and how much each took."""
    ran = [each for each in entries if each.findings is not None]
    return made_by(ran) | {
        f"experiment {each.name}, {each.scale}": " · ".join(
            [counted(each.findings.seeds, "seed"), counted(len(each.runs), "run"), cost(each.seconds)]
        )
        for each in ran
        if each.findings is not None
    }


def made_by(entries: Iterable[Entry]) -> dict[str, str]:
    """Versions of packages and kinds of machines, each once."""
    versions: dict[str, dict[str, None]] = {}
    machines: dict[str, None] = {}
    for each in entries:
        known = each.findings.provenance if each.findings is not None else {}
        for name, version in known.get("versions", {}).items():
            versions.setdefault(str(name), {})[str(version)] = None
        for host in known.get("hosts", ()):
            machines[", ".join(f"{name} {value}" for name, value in host.items() if name != "runs")] = None
    wording = " · ".join(f"{name} {', '.join(found)}" for name, found in versions.items())
    lines = {"versions": wording, "machines": " · ".join(machines)}
    return {name: line for name, line in lines.items() if line}


def _section(heading: str, about: str, entries: dict[str, Entry]) -> Section:
    markup = "\n".join(_experiment(each, place) for place, each in entries.items())
    data = {f"{place}-data": _data(each) for place, each in entries.items()}
    return Section(heading, about, widget=Widget(f'<div class="experiments">{markup}</div>', data))


def _verdicts(entries: Sequence[Entry], places: dict[int, str]) -> str:
    several = len({each.scale for each in entries}) > 1
    claims = [(each, index, judged) for each in entries for index, judged in enumerate(each.claims)]
    claims.sort(key=lambda claim: claim[2].verdict.value is None)  # stable: these come last
    rows = [tables.verdict_row(each, judged, f"{places[id(each)]}-c{index}", several) for each, index, judged in claims]
    counts = Counter(judged.verdict.grade for each in entries for judged in each.claims)
    choices = [("", f"all {len(rows)}"), *((each, f"{counts[each]} {each}") for each in GRADES if counts[each])]
    radios = "".join(
        f'<label><input type="radio" name="grade" value="{value}"{"" if value else " checked"}> {wording}</label>'
        for value, wording in choices
    )
    head = "".join(
        f'<th scope="col"{" class=number" if column in ("models", "cost") else ""}>{column}</th>'
        for column in tables.VERDICT_COLUMNS
    )
    return f"""<div class="filters" hidden><fieldset><legend>Show</legend>{radios}</fieldset>
<label>Words <input type="search" id="claim-words" placeholder="sigmoid, decay, Table 4"></label>
<output id="claim-count" aria-live="polite"></output></div>
<div class="scroll verdicts" tabindex="0" role="region" aria-label="Verdicts">
<table id="claims" class="{tables.VERDICTS_FIT}"><thead><tr>{head}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>"""


def _experiment(entry: Entry, place: str) -> str:
    wording = tally(judged.verdict for judged in entry.claims) if entry.claims and entry.findings else entry.reason
    facts = [entry.source, f"scale {entry.scale}" if entry.scale else ""]
    if entry.findings is not None:
        odd = Counter(run.status for _, run in entry.runs if run.status != "finished")
        facts += [counted(entry.findings.seeds, "seed"), counted(len(entry.runs), "run"), cost(entry.seconds)]
        facts += [f"{many} {status}" for status, many in odd.items()]
    parts = [
        f'<details class="experiment" id="{place}"><summary><b>{escape(entry.name)}</b> {escape(entry.asks)}',
        f'<span class="tally">{escape(wording)}</span></summary>',
        f'<p class="note">{escape(" · ".join(filter(None, facts)))}</p>',
    ]
    if entry.note:
        parts.append(f'<p class="sentence">{escape(entry.note)}</p>')
    hidden = len(entry.variations) - len(figures.drawn(entry))
    if hidden > 0:
        parts.append(f'<p class="sentence">The figures leave out the last {hidden} variations; the tables do not.</p>')
    if entry.reason:
        parts.append(f'<p class="sentence">{escape(entry.reason[:1].upper() + entry.reason[1:])}.</p>')
    parts += [f"<h3>Configurations side by side</h3>{tables.configurations(entry)}", *_plots(entry, place)]
    parts += _claims(entry, place)
    if entry.runs:
        parts.append(f"<h3>Runs</h3>{tables.runs_table(entry, place)}")
    return "\n".join([*parts, "</details>"])


def _plots(entry: Entry, place: str) -> list[str]:
    parts = []
    if entry.runs or any(variation.published for variation in entry.variations):
        titles = map(entry.title, _shown(entry))
        drawn = "".join(_plot(place, f"dose{index}", wording, 340) for index, wording in enumerate(titles))
        parts.append(f'<h3>Ours and the published values</h3><div class="figures">{drawn}</div>')
    names = figures.shown_curves(entry)
    if names:
        about = " and ".join(map(entry.title, names))
        shown = (
            '<p class="selected" hidden><span></span> <button type="button" data-run="">show no single run</button></p>'
        )
        parts.append(f"<h3>Over training</h3>{shown}{_plot(place, 'training', about, 480)}")
    if figures.compares_losses(names):
        parts.append(f'<h3>At equal loss</h3><p class="sentence">{escape(ABOUT_LOSS)}</p>')
        parts.append(_plot(place, "loss", "Sink rate against validation loss", 380))
    return parts


def _plot(place: str, name: str, label: str, height: int) -> str:
    return f"""<figure><figcaption>{escape(label)}</figcaption><div class="plot" data-experiment="{place}"
 data-plot="{name}" role="img" aria-label="{escape(label)}" style="min-height:{height}px"></div></figure>"""


def _claims(entry: Entry, place: str) -> list[str]:
    links = {(label, run.seed): f"{place}-r{index}" for index, (label, run) in enumerate(entry.runs)}
    parts = ["<h3>Claims</h3>"] if entry.claims else []
    for index, judged in enumerate(entry.claims):
        parts.append(_claim(entry, judged, f"{place}-c{index}", links))
    return parts


def _claim(entry: Entry, judged: Judged, place: str, links: dict[tuple[str, int], str]) -> str:
    verdict, claim = judged.verdict, judged.verdict.claim
    reason = verdict.graded.removeprefix(verdict.grade)
    numbers = tables.claim_numbers(entry, judged, links) if verdict.evidence else ""
    found = f"found {effect(verdict)}, {sizes(verdict)} models" if verdict.value is not None else "no numbers"
    facts = f"{judged.part}; asked {claim.rule}, {found}{reason} · {claim.source}"
    return f"""<details class="claim" id="{place}"><summary>{tables.pill(verdict.grade)}
<b>{escape(claim.name)}</b>: {escape(claim.statement)}</summary>
<p class="note">{escape(facts)}</p>{numbers}</details>"""


def _data(entry: Entry) -> dict[str, Any]:
    """What the page's script draws from, when the experiment is opened."""
    drawings = {f"dose{index}": figures.dose_response(entry, metric) for index, metric in enumerate(_shown(entry))}
    names = figures.shown_curves(entry)
    if names:
        drawings["training"] = figures.over_training(entry)
    if figures.compares_losses(names):
        drawings["loss"] = figures.at_equal_loss(entry)
    runs = [{"name": f"{label}, seed {run.seed}", "curves": figures.curves(run, names)} for label, run in entry.runs]
    return {"figures": drawings, "runs": runs, "curves": names, "template": _template(), "color": INK}


def _shown(entry: Entry) -> list[str]:
    return entry.metrics[:MOST_METRICS]


@cache
def _template() -> dict[str, Any]:
    return dict(json.loads(template().to_json()))
