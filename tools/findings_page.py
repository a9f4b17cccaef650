"""`python -m tools.findings_page [RESULTS [DOCS]]`: write `docs/findings.md` and its figures from the records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sinkscope.claims import tally
from sinkscope.experiments import SHIPPED
from sinkscope.experiments.questions import QUESTIONS
from sinkscope.report.experiments.entry import Entry, Judged, runs_of
from sinkscope.report.experiments.names import cost, counted, effect, number, said, sizes
from sinkscope.report.experiments.page import made_by
from sinkscope.report.stored import entries_of, read_findings, records_in
from tools.findings_figures import dots, mean, metrics_of, values_of
from tools.findings_text import BEFORE, MADE_BY, NOT_RUN
from tools.pages import DOCS, write

PAGE, FIGURES = "findings.md", "figures/findings"
COMPLETE = ("nano",)  # the scale at which every question is answered, be it with "not run"
MOST_METRICS = 8
SOME = "runs of some variations alone"
VERDICTS = ("experiment", "claim", "asked", "found (95 % interval)", "could show", "seeds", "verdict")


def entries(results: Path = SHIPPED) -> list[Entry]:
    """Every question at the scale of the page, and the records of other scales."""
    return entries_of([read_findings(record) for record in records_in(results)], QUESTIONS, COMPLETE)


def pages(entries: Sequence[Entry]) -> dict[str, str]:
    """The page and its figures, by their names below `docs`."""
    return {PAGE: page(entries), **figures(entries)}


def figures(entries: Sequence[Entry]) -> dict[str, str]:
    """A figure for each experiment that has values."""
    return {f"{FIGURES}/{_key(entry)}.svg": dots(entry) for entry in _ran(entries) if metrics_of(entry)}


def page(entries: Sequence[Entry]) -> str:
    """The page without its figures."""
    return "\n".join(_page(entries, _ran(entries)))


def _ran(entries: Sequence[Entry]) -> list[Entry]:
    """Those of which a claim can be judged: a baseline that other questions share does not make one that was run."""
    return [entry for entry in entries if any(judged.verdict.evidence for judged in entry.claims) or _whole(entry)]


def _whole(entry: Entry) -> bool:
    """Whether every variation has runs."""
    runs = entry.findings.runs if entry.findings is not None else {}
    return all(runs.get(variation.label) for variation in entry.variations)


def _page(entries: Sequence[Entry], ran: Sequence[Entry]) -> Iterator[str]:
    runs = runs_of(ran)
    wording = tally(judged.verdict for entry in entries for judged in entry.claims)
    yield BEFORE.format(
        tally=f"The verdicts: {wording}", runs=counted(len(runs), "run"), hours=cost(sum(run.seconds for run in runs))
    )
    if ran:
        yield "## The verdicts\n"
        yield table(VERDICTS, [_verdict(entry, judged) for entry in ran for judged in entry.claims])
        yield "\n## The experiments"
    for entry in ran:
        yield from _experiment(entry)
    absent = [entry for entry in entries if _key(entry) not in {_key(one) for one in ran}]
    if absent:
        rows = [_row((_name(entry), entry.asks, entry.source, entry.reason or SOME)) for entry in absent]
        yield NOT_RUN.format(rows="\n".join(rows)).rstrip()
    facts = [f"- {name}: {line}" for name, line in made_by(ran).items()]
    yield MADE_BY.format(facts="\n".join(facts) or "No experiment has a record yet.").rstrip() + "\n"


def _experiment(entry: Entry) -> Iterator[str]:
    yield f'\n<a id="{_key(entry)}"></a>\n\n### {_name(entry)}: {escaped(entry.asks)}\n'
    yield f"{_varied(entry)}\n"
    if entry.note:
        yield f"{escaped(entry.note)}\n"
    for judged in entry.claims:
        yield f"- {_told(entry, judged)}"
    for label, run in entry.runs:
        if run.status != "finished":
            reason = f": {escaped(run.reason)}" if run.reason else ""
            yield f"- *{escaped(run.status)}*: {escaped(label)}, seed {run.seed}{reason}"
    metrics = entry.tabled[:MOST_METRICS]
    columns = [name for metric in metrics for name in _columns(entry, metric)]
    yield f"\n{table(('variation', 'changes', *columns), _rows(entry, metrics))}"
    drawn = metrics_of(entry)
    if drawn:
        yield f"\n![{_alt(entry, drawn[0])}]({FIGURES}/{_key(entry)}.svg)"


def _varied(entry: Entry) -> str:
    fields = dict.fromkeys(name for variation in entry.variations for name in variation.changes)
    named = ", ".join(f"`{name}`" for name in fields)
    what = f"Varied: {named}, in {counted(len(entry.variations), 'variation')}" if fields else "One recipe, read anew"
    seeds = entry.findings.seeds if entry.findings is not None else 0
    amount = f"{counted(seeds, 'seed')} each, {counted(len(entry.runs), 'run')}, {cost(entry.seconds)}"
    shared = ", ".join(f"`{name}` = {escaped(said(value))}" for name, value in entry.shared.items())
    base = f" with {shared}" if shared else ""
    kind = f"task `{entry.base['task']}` at `{entry.scale}`" if "task" in entry.base else f"`{entry.scale}` recipe"
    return f"{what} of the {kind}{base}; {amount}. Source: {escaped(entry.source)}."


def _told(entry: Entry, judged: Judged) -> str:
    verdict = judged.verdict
    found = f"found {effect(verdict)}" if verdict.residual is not None else "nothing found"
    reason = f"; {escaped(verdict.reason)}" if verdict.reason else ""
    part = "primary" if judged is entry.claims[0] else "exploratory"
    shown = f", these seeds could have shown {verdict.shown_at_least}" if verdict.least is not None else ""
    return (
        f"**{verdict.said}** ({part}): {escaped(verdict.claim.statement)} "
        f"({found} in {sizes(verdict)} seeds, asked {escaped(str(verdict.claim.rule))}{shown}{reason})"
    )


def _verdict(entry: Entry, judged: Judged) -> tuple[str, ...]:
    verdict = judged.verdict
    found = effect(verdict)
    link = f"[{_name(entry)}](#{_key(entry)})"
    asked = escaped(str(verdict.claim.rule))
    statement = escaped(verdict.claim.statement)
    return link, statement, asked, found, verdict.shown_at_least, sizes(verdict), verdict.said


def _columns(entry: Entry, metric: str) -> tuple[str, ...]:
    """Ours, and beside it the published values where any variation has one."""
    wording = escaped(entry.title(metric))
    return (f"{wording}: ours", "published") if metric in entry.published else (wording,)


def _rows(entry: Entry, metrics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    ours = {metric: values_of(entry, metric) for metric in metrics}
    for index, variation in enumerate(entry.variations):
        changes = ", ".join(f"`{name}` = {escaped(said(value))}" for name, value in variation.changes.items())
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


def _alt(entry: Entry, metric: str) -> str:
    values = zip(entry.variations, values_of(entry, metric), strict=True)
    ours = ", ".join(f"{variation.label} {number(mean(found))}" for variation, found in values)
    other = ", ".join(f"{v.label} {number(v.published[metric])}" for v in entry.variations if metric in v.published)
    published = f" Published: {other}." if other else ""
    wording = escaped(f"{entry.title(metric)}, mean over seeds: {ours}.{published}")
    return wording.replace("]", "\\]").replace("[", "\\[")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are escaped already."""
    return "\n".join([_line(columns), _line(["---"] * len(columns)), *map(_line, rows)])


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    for mark, shown in (("\\", "\\\\"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("`", "\\`"), ("<", "&lt;")):
        text = text.replace(mark, shown)
    return " ".join(text.split())


def _row(cells: Sequence[str]) -> str:
    return _line([escaped(cell) for cell in cells])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _name(entry: Entry) -> str:
    return entry.name if entry.scale in COMPLETE else f"{entry.name} ({entry.scale})"


def _key(entry: Entry) -> str:
    return f"{entry.scale}-{entry.name}"


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:3]]
    results, docs = (*folders, *(SHIPPED, DOCS)[len(folders) :])
    write(pages(entries(results)), docs)
