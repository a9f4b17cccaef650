"""`sinkscope demo`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.files import check_writable
from sinkscope.live import duration
from sinkscope.report.terminal import only_json, plain, show, show_json, stderr

if TYPE_CHECKING:
    from sinkscope.demo import DemoPlan


def demo(
    out: Annotated[Path, typer.Option(help="Folder of runs, measurements and the report.")] = Path("sinkscope-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Take about 90 seconds, with stored training curves.")] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Say how long it would take and how much memory; train nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The closing numbers as JSON on stdout.")] = False,
) -> None:
    """Measure a model, then watch an attention sink emerge with softmax and stay away with sigmoid (10–20 minutes)."""
    check_writable(out)
    from sinkscope import demo as job

    planned = job.quick(out) if quick else job.full(out)
    if plan_only:
        _show_plan(planned, as_json)
        return
    try:
        with only_json(as_json):
            closing = job.run(planned)
    except job.ChildFailed as error:
        stderr().print(plain(f"error: {error}"), soft_wrap=True)
        raise typer.Exit(1) from error
    if as_json:
        show_json(closing.to_dict())


def _show_plan(planned: DemoPlan, as_json: bool) -> None:
    """Seconds and memory: of the runs, which share the processors, from a step of each that is taken now."""
    from sinkscope.cli.plan import plan
    from sinkscope.training import load_recipe

    found = [plan(load_recipe(planned.recipe, planned.overrides(each))) for each in planned.attentions]
    seconds = sum(each.here.total[1] for each in found)
    if planned.seconds is not None:
        seconds = min(seconds, planned.seconds)
    memory = sum(each.memory.total for each in found)
    if as_json:
        show_json({"runs": planned.attentions, "seconds": seconds, "memory": memory})
        return
    show(
        plain(
            f"about {duration(seconds)} of training ({', '.join(planned.attentions)}), beside half a minute for "
            f"measuring and the report, and {memory / 2**30:.1f} GiB of memory, estimated from a step"
        )
    )
