"""`sinkscope experiment`: the paper's questions, run and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sinkscope.errors import InputError
from sinkscope.report.terminal import note, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.claims import Verdict
    from sinkscope.experiments import Findings, Question

app = typer.Typer(no_args_is_help=True, help="Ask the paper's questions: list, show, run, verdict.")
RESULTS = Path("results/experiments")
Name = Annotated[str, typer.Argument(metavar="NAME", help="An experiment's name, or a Python file that holds one.")]
Scale = Annotated[str, typer.Option(metavar="nano|mini|paper", help="How large the models are.")]
Results = Annotated[Path, typer.Option(help="Where findings are kept.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@app.command("list", epilog="Example: sinkscope experiment list")
def list_(scale: Scale = "nano", results: Results = RESULTS, as_json: Json = False) -> None:
    """Every question, and what is known at a scale."""
    from sinkscope.claims import tally
    from sinkscope.experiments import QUESTIONS

    rows = [(question, _verdicts(question, scale, results)) for question in QUESTIONS.values()]
    if as_json:
        show_json(
            {"experiments": [{"name": q.name, "asks": q.asks, "rows": q.rows, "known": tally(v)} for q, v in rows]}
        )
        return
    cells = [(q.name, q.asks, ", ".join(q.rows), tally(v)) for q, v in rows]
    show(table(("experiment", "question", "rows", f"claims at {scale}"), cells, numbers_from=4))


@app.command("show", epilog="Example: sinkscope experiment show fixed-token")
def show_(name: Name, as_json: Json = False) -> None:
    """A question: its variations, published numbers, and the claims that decide."""
    from sinkscope.experiments import find

    question = find(name)
    if as_json:
        show_json(_described(question))
        return
    show(Text(question.asks, "bold"))
    show(plain(f"{question.source} (rows {', '.join(question.rows)})\n"))
    variations = [
        (v.label, _changes({**question.shared, **v.changes}), _changes(v.published)) for v in question.variations
    ]
    show(table(("variation", "changes", "published"), variations, numbers_from=3))
    show(plain(""))
    claims = [(a.claim.name, a.claim.statement, str(a.claim.rule)) for a in question.assertions]
    show(table(("claim", "statement", "effect asked"), claims, numbers_from=3))


@app.command("run", epilog="Example: sinkscope experiment run fixed-token --scale nano --seeds 3")
def run_(
    name: Name,
    scale: Scale = "nano",
    seeds: Annotated[int, typer.Option(help="Runs of every variation.")] = 3,
    workers: Annotated[int, typer.Option(help="Runs at once; they share the processor's threads.")] = 1,
    backend: Annotated[str, typer.Option(metavar="local", help="Where the runs are made.")] = "local",
    out: Annotated[Path, typer.Option(help="The parent folder of runs.")] = Path("runs"),
    results: Results = RESULTS,
    as_json: Json = False,
) -> None:
    """Make the runs that do not exist yet, and judge. Interrupted, it goes on where it stopped."""
    from sinkscope.cli.experiment_live import watching
    from sinkscope.experiments import find, run
    from sinkscope.experiments.backends import backend_named

    question = find(name)
    chosen = backend_named(backend)
    with watching(out) as watch:
        found = run(
            question, scale=scale, seeds=seeds, out=out, results=results, workers=workers, backend=chosen, watch=watch
        )
    _show_findings(question, found, as_json)


@app.command("verdict", epilog="Example: sinkscope experiment verdict --all")
def verdict_(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="An experiment's name.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every experiment.")] = False,
    scale: Scale = "nano",
    results: Results = RESULTS,
    as_json: Json = False,
) -> None:
    """Judge again from what was kept; nothing runs."""
    from sinkscope.claims import tally
    from sinkscope.experiments import QUESTIONS, find

    if every == (name is not None):
        raise InputError("name one experiment, or pass --all")
    questions = list(QUESTIONS.values()) if name is None else [find(name)]
    judged = [(question, verdict) for question in questions for verdict in _verdicts(question, scale, results)]
    if as_json:
        show_json({"scale": scale, "verdicts": [{"experiment": q.name, **v.to_dict()} for q, v in judged]})
        return
    _show_verdicts(judged)
    show(plain(f"\n{tally(verdict for _, verdict in judged)}"))


def _verdicts(question: Question, scale: str, results: Path) -> list[Verdict]:
    from sinkscope.errors import unknown
    from sinkscope.experiments import findings, verdicts
    from sinkscope.experiments.question import SCALES

    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return verdicts(question, findings.read(results, question.name, scale), scale)


def _show_findings(question: Question, found: Findings, as_json: bool) -> None:
    from sinkscope.experiments import verdicts

    judged = verdicts(question, found)
    if as_json:
        show_json({**found.to_dict(), "verdicts": [verdict.to_dict() for verdict in judged]})
        return
    metrics = ("loss", "sink_0", "sink_1", "sink_2", "strongest", "slot", "norm_ratio")
    rows = [
        (label, seed, run.status, *(f"{run[metric]:.2f}" for metric in metrics))
        for label, seeds in found.runs.items()
        for seed, run in seeds.items()
    ]
    show(table(("variation", "seed", "run", *metrics), rows, numbers_from=1))
    show(plain(""))
    _show_verdicts([(question, verdict) for verdict in judged])
    for label, seeds in found.failed.items():
        for seed, why in seeds.items():
            note(f"{label}, seed {seed} failed: {why}")


def _show_verdicts(judged: list[tuple[Question, Verdict]]) -> None:
    rows = [
        (question.name, verdict.claim.statement, str(verdict.claim.rule), verdict.row[4], verdict.row[6])
        for question, verdict in judged
    ]
    show(table(("experiment", "claim", "asked", "found", "verdict"), rows, numbers_from=5))


def _described(question: Question) -> dict[str, Any]:
    return {
        "name": question.name,
        "asks": question.asks,
        "rows": question.rows,
        "source": question.source,
        "variations": [
            {"label": v.label, "changes": {**question.shared, **v.changes}, "published": dict(v.published)}
            for v in question.variations
        ],
        "claims": [{"name": a.claim.name, "statement": a.claim.statement} for a in question.assertions],
    }


def _changes(values: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "–"
