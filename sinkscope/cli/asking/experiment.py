"""`sinkscope experiment`: questions, run and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sinkscope.cli.asking.verdict import (
    RESULTS,
    Ruled,
    found_of,
    hours,
    require_folder,
    show_verdicts,
    tell_damage,
    verdict_,
)
from sinkscope.cli.commands import App, When
from sinkscope.report.terminal import note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.experiments import Findings, Question

app = App(no_args_is_help=True, help="Ask questions of training runs: list, show, run, verdict.")
app.command("verdict", epilog="Example: sinkscope experiment verdict --all")(verdict_)
FAILED = 1  # exit code where runs failed
Name = Annotated[str, typer.Argument(metavar="NAME", help="An experiment's name, or a Python file that holds one.")]
Scale = Annotated[str, typer.Option(metavar="nano|mini|paper", help="How large the models are.")]
WHERE = "Where runs are trained; none: only judge those that exist."
REUSE = "Take runs whose folders are gone from records under --results and the question's own; do not train them."
WORKERS = "Runs at once. They share the processors, or have OMP_NUM_THREADS threads each, and a GPU where there is one."
SEEDS = "Train the first N of the question's seeds of each variation now."
COMPILE = "Train under torch.compile: faster; numbers differ by rounding alone. Needs a C++ compiler."
NONE = "no package with experiments is installed: `sinkscope-replication` has those of the paper"
Compiled = Annotated[bool, typer.Option("--compile", help=COMPILE)]
TRAINS = When(lambda values: values["backend"] != "none", "goes with a backend that trains: none only judges")
Results = Annotated[Path, typer.Option(help="Folder of the records.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@app.command("list", epilog="Example: sinkscope experiment list")
def list_(scale: Scale = "nano", results: Results = RESULTS, as_json: Json = False) -> None:
    """List the questions that installed packages bring, and what is known of each at a scale."""
    from sinkscope.experiments import QUESTIONS, verdicts
    from sinkscope.statistics.claims import tally

    require_folder(results)
    found, damaged = found_of(QUESTIONS.values(), scale, results)
    rows = [(q, verdicts(q, found[q.name], scale)) for q in QUESTIONS.values()]
    if as_json:
        show_json(
            {"experiments": [{"name": q.name, "asks": q.asks, "source": q.source, "known": tally(v)} for q, v in rows]}
        )
        tell_damage(damaged)
        return
    cells = [(q.name, q.asks, q.source, tally(v)) for q, v in rows]
    show(table(("experiment", "question", "source", f"claims at {scale}"), cells, numbers_from=4))
    if not rows:
        note(NONE)
    tell_damage(damaged)


@app.command("show", epilog="Example: sinkscope experiment show fixed-token")
def show_(name: Name, scale: Scale = "nano", results: Results = RESULTS, as_json: Json = False) -> None:
    """Show a question: its variations, published numbers, the runs that are known, and the claims that decide."""
    from sinkscope.cli.live.planned import deciding
    from sinkscope.experiments import find, keys, known, standing_of

    require_folder(results)
    question = find(name)
    keys(question, scale)  # raises for what `run` would refuse
    found = known(question, scale, results)
    seeds = {v.label: sorted(found.runs.get(v.label, {})) if found else [] for v in question.variations}
    if as_json:
        show_json(_described(question, seeds))
        return
    show(Text(question.asks, "bold"))
    show(plain(f"{question.source}\n"))
    if question.note:
        show(plain(f"{question.note}\n"))
    variations = [
        (
            v.label,
            _changes({**question.shared, **v.changes}),
            _changes(v.published),
            _seeds(question.seeds_of(v.label)),
            _seeds(seeds[v.label]),
        )
        for v in question.variations
    ]
    heads = ("variation", "changes", "published", "seeds that decide", f"runs at {scale}")
    show(table(heads, variations, numbers_from=3))
    show(plain(""))
    claims = [(a.claim.name, a.claim.statement, str(a.claim.rule)) for a in question.assertions]
    show(table(("claim", "statement", "asked"), claims, numbers_from=3))
    if short := deciding(question):
        show(plain(f"\n{short}"))
    show(plain(f"\n{standing_of(question, found).words}"))
    if scale in question.not_at:
        show(plain(f"not run at scale {scale}: {question.not_at[scale]}"))


@app.command("run", epilog="Example: sinkscope experiment run fixed-token --scale nano")
def run_(
    name: Name,
    scale: Scale = "nano",
    seeds: Annotated[int | None, typer.Option(help=SEEDS, show_default="all")] = None,
    workers: Annotated[int, typer.Option(help=WORKERS), TRAINS] = 1,
    backend: Annotated[str, typer.Option(metavar="local|ray|none", help=WHERE)] = "local",
    out: Annotated[Path, typer.Option(help="The parent folder of runs.")] = Path("runs"),
    results: Results = RESULTS,
    reuse: Annotated[bool, typer.Option("--reuse", help=REUSE)] = False,
    compiled: Annotated[Compiled, TRAINS] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Say how many runs, hours, bytes; train nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train the runs that do not exist yet, and judge the claims. After an interruption it continues where it stopped.

    Exits with 1 if a run failed; the others are still trained and judged.
    """
    from sinkscope.cli.live.experiment import watching
    from sinkscope.experiments import backend_named, find, path_of, run

    question, chosen = find(name), backend_named(backend)
    if plan_only:
        from sinkscope.cli.live.planned import show_planned

        show_planned(question, scale, seeds, workers, results, reuse, as_json)
        return
    if backend != "none":
        from sinkscope.cli.live.planned import deciding, planned

        cost = planned(question, scale, seeds, workers, results, reuse)
        about = "for a time that no record tells" if cost.seconds is None else f"about {hours(cost.seconds / workers)}"
        note(f"{cost.runs} runs, {about}, less what is there already")
        if short := deciding(question, seeds):
            note(short)
    record = path_of(results, question.name, scale)
    try:
        with only_json(as_json), watching(out) as watch:
            found = run(
                question,
                scale=scale,
                seeds=seeds,
                out=out,
                results=results,
                workers=workers,
                backend=chosen,
                reuse=reuse,
                compiled=compiled,
                watch=watch,
            )
    except KeyboardInterrupt:
        note(f"finished work is kept in {out}; the same command continues from there")
        raise
    _show_findings(question, found, record, as_json)
    if found.failed:
        raise typer.Exit(FAILED)


def _show_findings(question: Question, found: Findings, record: Path, as_json: bool) -> None:
    from sinkscope.experiments import verdicts, without_sinks
    from sinkscope.statistics.claims import tally

    judged = verdicts(question, found, found.scale)
    if as_json:
        shown = {**found.to_dict(), "verdicts": [verdict.to_dict() for verdict in judged], "record": str(record)}
        show_json(shown)
    else:
        rows = [
            (label, seed, run.status, *(f"{run[metric]:.2f}" for metric in question.shown))
            for label, seeds in found.runs.items()
            for seed, run in seeds.items()
        ]
        show(table(("variation", "seed", "run", *question.shown), rows, numbers_from=1, keys=2))
        show(plain(""))
        show_verdicts([Ruled(question, found, judged)])
        show(plain(f"\n{tally(judged)}"))
    for label, seeds in found.failed.items():
        for seed, why in seeds.items():
            note(f"{label}, seed {seed} failed: {why}")
    missing = sum(
        seed not in {*found.runs.get(label, {}), *found.failed.get(label, {})}
        for label in question.labels
        for seed in question.seeds_of(label)
    )
    if missing:
        note(f"{missing} of the runs that decide are not there")
    if warning := without_sinks(question, found):
        note(warning)
    note(f"record: {record}; runs of {hours(found.seconds)}")


def _described(question: Question, seeds: Mapping[str, list[int]]) -> dict[str, Any]:
    return {
        "name": question.name,
        "asks": question.asks,
        "source": question.source,
        "note": question.note,
        "variations": [
            {
                "label": v.label,
                "changes": {**question.shared, **v.changes},
                "published": dict(v.published),
                "decided_by": list(question.seeds_of(v.label)),
                "seeds": seeds[v.label],
            }
            for v in question.variations
        ],
        "claims": [
            {"name": c.name, "statement": c.statement, "asked": str(c.rule), "source": c.source}
            for c in (assertion.claim for assertion in question.assertions)
        ],
    }


def _seeds(seeds: Sequence[int]) -> str:
    """Seeds in words: `6 (0 to 5)`, `3 (0, 4, 7)`."""
    if not seeds:
        return "0"
    run = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{len(seeds)} ({f'{seeds[0]} to {seeds[-1]}' if run else ', '.join(map(str, seeds))})"


def _changes(values: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "–"
