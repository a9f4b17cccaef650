"""`sinkscope train`: a recipe becomes a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.files import check_writable
from sinkscope.report.terminal import flat, note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.cli.plan import Plan
    from sinkscope.training import Run


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe's name (nano, mini, 60m, 1b) or a YAML file.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, such as optimizer.lr=1e-3. Repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The parent folder of runs.")] = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run of the same recipe.")] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Say what would be trained; train nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Train a model by a recipe, watching loss and sink rate."""
    from sinkscope.training import load_recipe

    resolved = load_recipe(recipe, overrides or ())
    if plan_only:
        from sinkscope.cli.plan import plan

        _show_plan(plan(resolved), as_json)
        return
    check_writable(out)
    from sinkscope.training import keep_freed_memory
    from sinkscope.training import train as run_training

    keep_freed_memory()  # a process of its own may; a caller of `train` decides for itself
    with only_json(as_json):
        run = run_training(resolved, out=out, resume=resume, progress=True)
    _show_run(run, as_json)


def _show_run(run: Run, as_json: bool) -> None:
    from sinkscope.training.log import LOG, read_rows

    last = read_rows(run.path / LOG)[-1]
    if as_json:
        show_json({"run": str(run.path), "record": run.record, "last": last})
        return
    facts = [(name, f"{value:.4g}" if isinstance(value, float) else value) for name, value in last.items()]
    show(table(("last row of the log", ""), facts))
    show(plain(f"run folder: {run.path}"))
    note(f"next: sinkscope measure {run.path}")


def _show_plan(plan: Plan, as_json: bool) -> None:
    if as_json:
        show_json(plan.to_dict())
        return
    show(table(("recipe", ""), flat(plan.recipe), numbers_from=2))
    show(plain(""))
    show(table(("what it would take", ""), plan.facts()))
