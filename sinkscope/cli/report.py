"""`sinkscope report`: stored results of any kind, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli import options
from sinkscope.files import check_writable
from sinkscope.report.terminal import plain, show, show_json

PATHS = (
    "Runs and folders of runs; measurements, trials, calibrations, report cards, or their folders; verdicts.json, "
    "experiments (results/experiments, or one record). For the records of your own question, also its Python file."
)


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help=PATHS)],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    as_json: options.AsJson = False,
) -> None:
    """Write one self-contained HTML page from stored results: measurements, trials, runs, experiments."""
    check_writable(out.parent)
    from sinkscope.report.page import write_page
    from sinkscope.report.writing import page_of_result

    page = page_of_result(paths)
    write_page(page, out)
    if as_json:
        show_json({"report": str(out), "sections": [section.title for section in page.sections]})
    else:
        show(plain(f"{out}: {len(page.sections)} sections, {out.stat().st_size / 1e6:.1f} MB, opens without a network"))
