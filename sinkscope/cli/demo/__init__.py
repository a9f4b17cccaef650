"""`sinkscope demo`: measure a model, and watch a sink emerge in training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import options
from sinkscope.cli.train import plan_training
from sinkscope.files import check_writable
from sinkscope.live import duration
from sinkscope.report.terminal import only_json, plain, show, show_json, stderr

if TYPE_CHECKING:
    from sinkscope.cli.demo.plan import DemoPlan


def demo(
    out: Annotated[Path, typer.Option(help="Folder of runs, measurements and the report.")] = Path("sinkscope-demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Take about 90 seconds: a small model on three inputs, one training.")
    ] = False,
    plan_only: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a pretrained model, then train two small ones side by side; one page (five minutes on two cores)."""
    check_writable(out)
    from sinkscope.cli.demo.children import ChildFailed
    from sinkscope.cli.demo.job import run
    from sinkscope.cli.demo.plan import full
    from sinkscope.cli.demo.plan import quick as small

    plan = small(out) if quick else full(out)
    if plan_only:
        _show_cost(plan, as_json)
        return
    try:
        with only_json(as_json):
            numbers = run(plan)
    except ChildFailed as error:
        stderr().print(plain(f"error: {error}"), soft_wrap=True)
        raise typer.Exit(1) from error
    if as_json:
        show_json(numbers.to_dict())


def _show_cost(plan: DemoPlan, as_json: bool) -> None:
    """Seconds and memory of the runs, which share the processors, from a step of each that is timed now."""
    from sinkscope.training import load_recipe

    plans = [plan_training(load_recipe(plan.recipe, plan.overrides(attention))) for attention in plan.attentions]
    seconds = min(sum(each.here.total[1] for each in plans), plan.seconds)
    memory = sum(each.memory.total for each in plans)
    if as_json:
        show_json({"runs": plan.attentions, "seconds": seconds, "memory": memory})
        return
    show(
        plain(
            f"{'a report card' if plan.card else 'measuring'}, then up to {duration(seconds)} of training "
            f"({', '.join(plan.attentions)}), {plan.seconds:.0f} seconds in all, and the report; training takes "
            f"{memory / 2**30:.1f} GiB of memory, estimated from one step"
        )
    )
