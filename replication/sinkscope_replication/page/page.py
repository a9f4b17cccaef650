"""The study's page and its figures, from its rows of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from sinkscope.experiments import with_rows
from sinkscope.report.experiments import ExperimentEntry, Judged, entry, made_by, paragraph, runs_of
from sinkscope.report.experiments.names import cost, counted, effect, in_words, number, sizes
from sinkscope.statistics.claims import tally
from sinkscope_replication.page.answers import beside, judged, paper
from sinkscope_replication.page.figures import Shown, mean, values_of
from sinkscope_replication.page.markdown import escaped, table
from sinkscope_replication.page.shapes import drawing
from sinkscope_replication.page.text import BEFORE, MADE_BY, NOT_RUN, PAPER, RELATED, SIZES, SYNTHETIC
from sinkscope_replication.page.told import told
from sinkscope_replication.paper import cites
from sinkscope_replication.questions import QUESTIONS

PAGE, FIGURES = "findings.md", "figures/findings"
COMPLETE = ("nano",)  # the scale at which every question is answered, be it with "not run"
MOST_METRICS = 8
SOME = "runs of some variations alone"
CLAIMS = ("claim", "part", "asked", "found (95 % interval)", "seeds", "could show", "verdict")


def entries() -> list[ExperimentEntry]:
    """Every question of the study, judged by its rows alone."""
    return [entry(each, with_rows(each, scale, None), scale) for scale in COMPLETE for each in QUESTIONS.values()]


def pages(entries: Sequence[ExperimentEntry]) -> dict[str, str]:
    """The page and its figures, by their names below the folder that they are written to."""
    drawn = figures(entries)
    return {PAGE: page(entries, drawn), **drawn}


def figures(entries: Sequence[ExperimentEntry]) -> dict[str, str]:
    """A figure for each experiment that has values."""
    made = {f"{FIGURES}/{_key(entry)}.svg": drawing(entry) for entry in _ran(entries)}
    return {name: figure for name, figure in made.items() if figure}


def page(entries: Sequence[ExperimentEntry], drawn: Container[str] = ()) -> str:
    """The page, with links to the figures that were `drawn`."""
    return "\n".join(_page(entries, _ran(entries), drawn))


def _ran(entries: Sequence[ExperimentEntry]) -> list[ExperimentEntry]:
    """Those of which a claim can be judged, or that have runs of every variation."""
    return [entry for entry in entries if entry.was_run or _whole(entry)]


def _whole(entry: ExperimentEntry) -> bool:
    """Whether every variation has runs."""
    runs = entry.findings.runs if entry.findings is not None else {}
    return all(runs.get(variation.label) for variation in entry.variations)


def _page(entries: Sequence[ExperimentEntry], ran: Sequence[ExperimentEntry], drawn: Container[str]) -> Iterator[str]:
    runs = runs_of(ran)
    wording = tally(one.verdict for entry in entries for one in entry.claims)
    hours = cost(sum(run.seconds for run in runs))
    yield BEFORE.format(tally=wording, numbers=_different(entries), runs=counted(len(runs), "run"), hours=hours)
    made = judged(entries, COMPLETE[0])
    if QUESTIONS.keys() <= made.keys():
        yield PAPER
        tasks = [entry.name for entry in entries if entry.task]
        yield from paper(made, COMPLETE[0], tasks)
    others = [one for one in ran if one.claims and not any(cites(claim.verdict) for claim in one.claims)]
    for about, group in (
        (RELATED, [one for one in others if not one.task]),
        (SYNTHETIC, [one for one in ran if one.task]),
    ):
        if group:
            yield f"{about}\n{beside(group)}\n"
    yield SIZES
    if ran:
        yield "## The experiments"
    for each in ran:
        yield from _experiment(each, drawn)
    absent = [entry for entry in entries if _key(entry) not in {_key(one) for one in ran}]
    if absent:
        yield NOT_RUN.format(experiments="\n\n".join(map(_absent, absent))).rstrip()
    facts = [f"- {name}: {line}" for name, line in made_by(ran).items()]
    yield MADE_BY.format(facts="\n".join(facts) or "No experiment has a record yet.").rstrip() + "\n"


def _different(entries: Sequence[ExperimentEntry]) -> int:
    """How many numbers the decided claims rest on: of several with one effect and interval one counts."""
    every = [one.verdict for entry in entries for one in entry.claims]
    return len({(each.residual, each.interval) for each in every if each.outcome in ("supported", "refuted")})


def _absent(entry: ExperimentEntry) -> str:
    """A paragraph on an experiment of which nothing is known: the reason, or what its primary claim lacks."""
    lacking = entry.claims[0].verdict.reason if entry.claims else ""
    told = f"**{escaped(_name(entry))}**: {escaped(entry.asks)} Source: {escaped(entry.source) or 'none'}."
    gone = f"\n\n{_gone(entry)}" if entry.withdrawn else ""
    return f'<a id="{_key(entry)}"></a>\n\n{told} Why not: {escaped(entry.reason or lacking or SOME)}.{gone}'


def _experiment(entry: ExperimentEntry, drawn: Container[str]) -> Iterator[str]:
    yield f'\n<a id="{_key(entry)}"></a>\n\n### {_name(entry)}: {escaped(entry.asks)}\n'
    if entry.claims:
        yield f"{escaped(paragraph(entry))}\n"
    figure = f"{FIGURES}/{_key(entry)}.svg"
    if figure in drawn:
        yield f"![{_alt(entry)}]({figure})\n"
    yield f"{_varied(entry)}\n"
    if entry.note:
        yield f"{escaped(entry.note)}\n"
    if entry.claims:
        yield f"{table(CLAIMS, [_claim(one) for one in entry.claims])}\n"
    if entry.withdrawn:
        yield f"{_gone(entry)}\n"
    for label, run in entry.runs:
        if run.status != "finished":
            reason = f": {escaped(run.reason)}" if run.reason else ""
            yield f"- *{escaped(run.status)}*: {escaped(label)}, seed {run.seed}{reason}"
    metrics = entry.tabled[:MOST_METRICS]
    columns = [name for metric in metrics for name in _columns(entry, metric)]
    yield f"\n{table(('variation', 'changes', *columns), _rows(entry, metrics))}"


def _gone(entry: ExperimentEntry) -> str:
    """The claims that were withdrawn, and why."""
    return "\n".join(
        f"- *Withdrawn* from {_name(entry)}: {escaped(gone.statement)}. Reason: {escaped(gone.reason)}."
        for gone in entry.withdrawn
    )


def _varied(entry: ExperimentEntry) -> str:
    fields = dict.fromkeys(name for variation in entry.variations for name in variation.changes)
    named = ", ".join(f"`{name}`" for name in fields)
    what = f"Varied: {named}, in {counted(len(entry.variations), 'variation')}" if fields else "Readings"
    amount = f"{_seeds(entry)} each, {counted(len(entry.runs), 'run')}, {cost(entry.seconds)}"
    shared = ", ".join(f"`{name}` = {escaped(in_words(value))}" for name, value in entry.shared.items())
    base = f" with {shared}" if shared else ""
    kind = (
        f"task `{entry.base['task']}` at `{entry.scale}`"
        if "task" in entry.base
        else f"`{entry.base.get('name', entry.scale)}` recipe"
    )
    return f"{what} of the {kind}{base}; {amount}. Source: {escaped(entry.source)}."


def _seeds(entry: ExperimentEntry) -> str:
    """How many seeds a variation has; the least and the most where they differ."""
    per_label = Counter(label for label, _ in entry.runs)
    seeds = [per_label[variation.label] for variation in entry.variations]
    least, most = min(seeds), max(seeds)
    return counted(most, "seed") if least == most else f"{least} to {counted(most, 'seed')}"


def _claim(one: Judged) -> tuple[str, ...]:
    verdict = one.verdict
    reason = f" ({escaped(verdict.reason)})" if verdict.reason else ""
    words = f"**{verdict.said}**" if verdict.outcome in ("supported", "refuted") else verdict.said
    found = (escaped(str(verdict.claim.rule)), effect(verdict), sizes(verdict), verdict.shown_at_least)
    return escaped(verdict.claim.statement), one.part, *found, f"{words}{reason}"


def _columns(entry: ExperimentEntry, metric: str) -> tuple[str, ...]:
    """Ours, and beside it the published values where any variation has one."""
    wording = escaped(entry.title(metric))
    return (f"{wording}: ours", "published") if metric in entry.published else (wording,)


def _rows(entry: ExperimentEntry, metrics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    ours = {metric: values_of(entry, Shown(metric)) for metric in metrics}
    for index, variation in enumerate(entry.variations):
        changes = ", ".join(f"`{name}` = {escaped(in_words(value))}" for name, value in variation.changes.items())
        cells = []
        for metric in metrics:
            cells.append(_over_seeds(ours[metric][index]))
            if metric in entry.published:
                cells.append(number(variation.published.get(metric)))
        yield (escaped(variation.label), changes or "the recipe as it is", *cells)


def _over_seeds(values: Sequence[float]) -> str:
    if len(values) < 2:
        return number(mean(values))
    return f"{number(mean(values))} ({number(min(values))} to {number(max(values))})"


def _alt(entry: ExperimentEntry) -> str:
    """What the figure shows, in words."""
    return escaped(told(entry)).replace("]", "\\]").replace("[", "\\[")


def _name(entry: ExperimentEntry) -> str:
    return entry.name if entry.scale in COMPLETE else f"{entry.name} ({entry.scale})"


def _key(entry: ExperimentEntry) -> str:
    return f"{entry.scale}-{entry.name}"
