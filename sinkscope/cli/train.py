"""`sinkscope train`: a recipe becomes a trained model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli.commands import When
from sinkscope.cli.options import BAD_INPUT
from sinkscope.files import check_writable
from sinkscope.report.terminal import flat, note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.cli.plan import TrainingPlan
    from sinkscope.training import Run

MANY = When(
    lambda values: values["parallel"] != "ddp" or "WORLD_SIZE" in os.environ,
    "goes with several processes: start them with torchrun",
)
FIGURE = "figure.html"  # loss and sink rate over steps, in the run's folder
NONE_YET = 1.0  # percent of heads: a sink rate below is no sink


def train(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A recipe's name (nano, micro, nano-sft, mini, 60m, 1b) or a YAML file."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, such as optimizer.lr=1e-3; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The parent folder of runs.")] = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished run of the same recipe.")] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Show what would be trained; train nothing.")] = False,
    parallel: Annotated[
        str,
        typer.Option(
            metavar="auto|ddp|fsdp",
            help="Under torchrun: the whole model on every process (ddp), or spread over GPUs (fsdp). "
            "auto: as accelerate launch was configured, else ddp.",
        ),
        MANY,
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Train a model from a recipe and watch loss and sink rate. Under torchrun, all processes train one model."""
    from sinkscope.training import ReportedElsewhere

    try:
        _train(recipe, overrides or (), out, resume, plan_only, parallel, as_json)
    except ReportedElsewhere as refused:  # the main process says why
        raise typer.Exit(BAD_INPUT) from refused


def _train(
    recipe: str, overrides: Sequence[str], out: Path, resume: bool, plan_only: bool, parallel: str, as_json: bool
) -> None:
    from sinkscope.training import joined, keep_freed_memory, load_recipe, resolved_device
    from sinkscope.training import train as run_training

    processes = joined(resolved_device("auto"))
    resolved = processes.together(lambda: load_recipe(recipe, overrides))
    if plan_only:
        from sinkscope.cli.plan import plan

        planned = processes.from_main(lambda: plan(resolved))
        if processes.main:
            _show_plan(planned, as_json)
        return
    processes.from_main(lambda: check_writable(out))
    keep_freed_memory()  # a process of its own may; a caller of `train` decides for itself
    with only_json(as_json):
        run = run_training(resolved, out=out, resume=resume, progress=True, parallel=parallel)
    processes.leave()
    if processes.main:
        _show_run(run, as_json)


def _show_run(run: Run, as_json: bool) -> None:
    from sinkscope.report.writing import write_report
    from sinkscope.training import LOG, read_rows

    last = read_rows(run.path / LOG)[-1]
    write_report(run, run.path / FIGURE)
    if as_json:
        show_json({"run": str(run.path), "record": run.record, "last": last, "figure": str(run.path / FIGURE)})
        return
    for line in ending(last, run.record, str(run.path)):
        show(plain(line))
    note(f"next: sinkscope measure {run.path}")


def ending(last: Mapping[str, Any], record: Mapping[str, Any], folder: str) -> list[str]:
    """What a run came to, in four lines: loss, sink, time, folder. `last` is the last row of its log."""
    losses = [f"{name.replace('_', ' ')} {last[name]:.3f}" for name in ("loss", "validation_loss") if name in last]
    minutes = record.get("seconds", math.nan) / 60
    return [
        f"step {last['step']}: {', '.join(losses)} nats",
        sink_of(last),
        f"time: {minutes:.1f} min" if math.isfinite(minutes) else "time: unknown",
        f"run folder: {folder} ({FIGURE} draws loss and sink, log.jsonl has every row)",
    ]


def sink_of(last: Mapping[str, Any]) -> str:
    """Where the sink is and how strong; "none yet" below one head in a hundred."""
    rate, position = last.get("sink/strongest"), last.get("sink/strongest_position")
    if rate is None or position is None or not math.isfinite(rate):
        return "sink: not measured"
    if rate < NONE_YET:
        return f"sink: none yet (no position is one in {NONE_YET:g} % of heads)"
    return f"sink: position {position:.0f}, in {rate:.1f} % of heads"


def _show_plan(plan: TrainingPlan, as_json: bool) -> None:
    if as_json:
        show_json(plan.to_dict())
        return
    show(table(("recipe", ""), flat(plan.recipe), numbers_from=2))
    show(plain(""))
    show(table(("what it would take", ""), plan.facts()))
