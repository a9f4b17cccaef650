"""`sinkscope experiment`: the paper's questions, run and judged."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sinkscope.cli.experiment_queue import queue_
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.claims import Verdict
    from sinkscope.experiments import Findings, Known, Question

app = typer.Typer(no_args_is_help=True, help="Ask the paper's questions: list, show, run, queue, verdict.")
app.command("queue", epilog="Example: sinkscope experiment queue --hours 8 --plan")(queue_)
FAILED, BAD_INPUT = 1, 2  # exit codes where runs failed, and where a record cannot be read
RESULTS = Path("results/experiments")
Name = Annotated[str, typer.Argument(metavar="NAME", help="An experiment's name, or a Python file that holds one.")]
Scale = Annotated[str, typer.Option(metavar="nano|mini|paper", help="How large the models are.")]
WHERE = "Where runs are trained; none: only judge those that exist."
REUSE = "Take runs whose folders are gone from any record under --results; do not train them again."
Results = Annotated[Path, typer.Option(help="Folder of the records.")]
KNOWN = "Folder of the records; without it those that come with the package, and results/experiments before them."
Records = Annotated[Path | None, typer.Option("--results", help=KNOWN)]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@app.command("list", epilog="Example: sinkscope experiment list")
def list_(scale: Scale = "nano", results: Records = None, as_json: Json = False) -> None:
    """List every question, and what is known at a scale."""
    from sinkscope.claims import tally
    from sinkscope.experiments import QUESTIONS, known, verdicts

    records = known(folders_of(results), scale)
    rows = [(q, verdicts(q, None if q.name in records.damaged else records.of(q), scale)) for q in QUESTIONS.values()]
    if as_json:
        show_json(
            {"experiments": [{"name": q.name, "asks": q.asks, "source": q.source, "known": tally(v)} for q, v in rows]}
        )
        tell_damage(records)
        return
    cells = [(q.name, q.asks, q.source, tally(v)) for q, v in rows]
    show(table(("experiment", "question", "source", f"claims at {scale}"), cells, numbers_from=4))
    tell_damage(records)


@app.command("show", epilog="Example: sinkscope experiment show fixed-token")
def show_(name: Name, as_json: Json = False) -> None:
    """Show a question: its variations, published numbers, and the claims that decide."""
    from sinkscope.experiments import find

    question = find(name)
    if as_json:
        show_json(_described(question))
        return
    show(Text(question.asks, "bold"))
    show(plain(f"{question.source}\n"))
    if question.note:
        show(plain(f"{question.note}\n"))
    variations = [
        (v.label, _changes({**question.shared, **v.changes}), _changes(v.published)) for v in question.variations
    ]
    show(table(("variation", "changes", "published"), variations, numbers_from=3))
    show(plain(""))
    claims = [(a.claim.name, a.claim.statement, str(a.claim.rule)) for a in question.assertions]
    show(table(("claim", "statement", "effect asked"), claims, numbers_from=3))
    for gone in question.withdrawn:
        show(plain(f"\nwithdrawn: {gone.statement} ({gone.reason})"))


@app.command("run", epilog="Example: sinkscope experiment run fixed-token --scale nano --seeds 3")
def run_(
    name: Name,
    scale: Scale = "nano",
    seeds: Annotated[int, typer.Option(help="Runs of every variation.")] = 3,
    workers: Annotated[int, typer.Option(help="Runs at once; they share the processors.")] = 1,
    backend: Annotated[str, typer.Option(metavar="local|ray|none", help=WHERE)] = "local",
    out: Annotated[Path, typer.Option(help="The parent folder of runs.")] = Path("runs"),
    results: Results = RESULTS,
    reuse: Annotated[bool, typer.Option("--reuse", help=REUSE)] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Say how many runs, hours, bytes; train nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train the runs that do not exist yet, and judge the claims. After an interruption it continues where it stopped.

    Exits with 1 if a run failed; the others are still trained and judged.
    """
    from sinkscope.cli.live.experiment import watching
    from sinkscope.experiments import aside, backend_named, find, findings, run

    question = find(name)
    if plan_only:
        from sinkscope.cli.live.planned import show_planned

        show_planned(question, scale, seeds, workers, results, reuse, as_json)
        return
    chosen = backend_named(backend)
    record = findings.path_of(results, question.name, scale)
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
                watch=watch,
            )
    except KeyboardInterrupt:
        note(f"finished work is kept in {out}; the same command continues from there")
        raise
    _show_findings(question, found, record, aside.set_aside(results, question.name, scale), as_json)
    if found.failed:
        raise typer.Exit(FAILED)


@app.command("verdict", epilog="Example: sinkscope experiment verdict --all")
def verdict_(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A name, or a Python file.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Judge every experiment.")] = False,
    scale: Scale = "nano",
    results: Records = None,
    as_json: Json = False,
) -> None:
    """Judge the claims again from stored records; train nothing.

    A run counts wherever a claim reads it, whatever question its record was made for.
    """
    from sinkscope.claims import tally
    from sinkscope.experiments import QUESTIONS, find, holds_after_holm, known, stated, verdicts

    if every == (name is not None):
        raise InputError("name one experiment, or pass --all")
    questions = list(QUESTIONS.values()) if name is None else [find(name)]
    records = known(folders_of(results), scale, own=questions)
    broken = records.damaged if every else {}  # of one question that is named it is an error
    entries = [(question, None if question.name in broken else records.of(question)) for question in questions]
    judged = [(question, found, verdicts(question, found, scale)) for question, found in entries]
    held = holds_after_holm([(question, verdict) for question, _, made in judged for verdict in made])
    if as_json:
        described = [
            {
                "experiment": q.name,
                "primary": verdict.claim.name == q.primary,
                **verdict.to_dict(),
                "stated": asdict(stated(q, assertion, found)),
            }
            for q, found, made in judged
            for assertion, verdict in zip(q.assertions, made, strict=True)
        ]
        costs = {q.name: found.cost for q, found, _ in judged if found is not None}
        show_json(
            {"scale": scale, "verdicts": described, "costs": costs, "notes": list(records.notes), "after_holm": held}
        )
        tell_damage(records, every)
        return
    _show_verdicts([(question, found, verdict) for question, found, made in judged for verdict in made])
    runs = [
        run for _, found, _ in judged if found is not None for seeds in found.runs.values() for run in seeds.values()
    ]
    shared = {run.run: run.seconds for run in runs}  # several questions may read a run
    outcomes = tally(verdict for _, _, made in judged for verdict in made)
    show(plain(f"\n{outcomes}; {len(shared)} runs of {hours(math.fsum(shared.values()))}"))
    if every and held:
        kept = ", ".join(name for name, holds in held.items() if holds) or "none"
        show(plain(f"primary claims that hold after Holm's correction for {len(held)} of them: {kept}"))
    late = [
        (q.name, assertion.claim.name, told.said)
        for q, found, _ in judged
        for assertion in q.assertions
        if (told := stated(q, assertion, found)).when == "afterwards"
    ]
    if every and late:
        show(plain(f"claims stated after their first run: {len(late)} (`verdict NAME` and --json name them)"))
    for _, claim, said in [] if every else late:
        show(plain(f"stated after its first run: {claim} ({said})"))
    for line in records.notes:
        note(line)
    tell_damage(records, every)


def tell_damage(records: Known, asked: bool = True) -> None:
    """Which records could not be read, when all else has been said; exits with 2 where these were `asked` for."""
    for line in records.damaged.values():
        note(f"not judged: {line}")
    if records.damaged and asked:
        raise typer.Exit(BAD_INPUT)


def folders_of(results: Path | None) -> list[Path]:
    """Where records are read: the folder that was named, or one's own and those that come with the package."""
    from sinkscope.experiments import SHIPPED

    return [RESULTS, SHIPPED] if results is None else [results]


def _show_findings(question: Question, found: Findings, record: Path, aside: list[Path], as_json: bool) -> None:
    from sinkscope.claims import tally
    from sinkscope.experiments import verdicts

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
        _show_verdicts([(question, found, verdict) for verdict in judged])
        show(plain(f"\n{tally(judged)}"))
    for label, seeds in found.failed.items():
        for seed, why in seeds.items():
            note(f"{label}, seed {seed} failed: {why}")
    for path in aside:
        note(f"runs that the record no longer holds are set aside: {path}")
    missing = len(question.variations) * found.seeds - sum(map(len, (*found.runs.values(), *found.failed.values())))
    if missing:
        note(f"{missing} runs were not made")
    note(f"record: {record}; runs of {hours(found.seconds)}")


def _show_verdicts(judged: list[tuple[Question, Findings | None, Verdict]]) -> None:
    from sinkscope.claims import cells

    rows = [
        (
            question.name,
            *cells(verdict, "statement", "asked", "found", "cases"),
            verdict.shown_at_least,
            "–" if found is None else hours(found.seconds),
            *cells(verdict, "verdict"),
        )
        for question, found, verdict in judged
    ]
    columns = ("experiment", "claim", "asked", "effect (95 % interval)", "seeds", "could show", "cost", "verdict")
    show(table(columns, rows, numbers_from=len(columns)))


def hours(seconds: float) -> str:
    """What runs cost: `1.25 h`, and below a tenth of an hour `4.2 min`."""
    return f"{seconds / 3600:.2f} h" if seconds >= 360 else f"{seconds / 60:.1f} min"


def _described(question: Question) -> dict[str, Any]:
    return {
        "name": question.name,
        "asks": question.asks,
        "source": question.source,
        "note": question.note,
        "variations": [
            {"label": v.label, "changes": {**question.shared, **v.changes}, "published": dict(v.published)}
            for v in question.variations
        ],
        "claims": [
            {"name": c.name, "statement": c.statement, "asked": str(c.rule), "source": c.source}
            for c in (assertion.claim for assertion in question.assertions)
        ],
        "withdrawn": [vars(gone) for gone in question.withdrawn],
    }


def _changes(values: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "–"
