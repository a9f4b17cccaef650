"""`sinkscope export`: a result as engines read it, or a model that loads without sinkscope."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli import options
from sinkscope.cli.showing import show_written
from sinkscope.report.terminal import plain, show, show_json


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RESULT", help="A folder of check, cache, quantize or intervene; or a model, for its weights."
        ),
    ],
    engine: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="ENGINE",
            help="llama.cpp, vLLM, MLX, ExecuTorch or llm-compressor. Leave it out to write weights.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("sinkscope-export"),
    as_json: options.AsJson = False,
) -> None:
    """Write the lines that an engine reads, each measured and with its source; or a model as a plain folder."""
    from sinkscope.checks import export as export_result

    paths = export_result(source, engine, out)
    if as_json:
        show_json({"written": [str(path) for path in paths]})
        return
    if engine is not None:
        show(plain(paths[0].read_text(encoding="utf-8").rstrip("\n")))
    show_written(paths)
