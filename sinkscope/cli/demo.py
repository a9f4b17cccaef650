"""`sinkscope demo`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.files import check_writable
from sinkscope.report.terminal import only_json, plain, show_json, stderr


def demo(
    out: Annotated[Path, typer.Option(help="Folder of runs, measurements and the report.")] = Path("sinkscope-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Take about 90 seconds, with stored training curves.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The closing numbers as JSON on stdout.")] = False,
) -> None:
    """Measure a model, then watch an attention sink emerge with softmax and stay away with sigmoid (10–20 minutes)."""
    check_writable(out)
    from sinkscope import demo as job

    try:
        with only_json(as_json):
            closing = job.run(job.quick(out) if quick else job.full(out))
    except job.ChildFailed as error:
        stderr().print(plain(f"error: {error}"), soft_wrap=True)
        raise typer.Exit(1) from error
    if as_json:
        show_json(closing.to_dict())
