"""`sinkscope theory`: closed forms and identities against the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import options
from sinkscope.files import check_writable, write_json, write_text
from sinkscope.report.terminal import only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.claims import Verdict

TABLE, VERDICTS, PAGE = "table.md", "verdicts.json", "figure.html"
REFUTED = 1
SHOWN = ("claim", "statement", "asked", "found", "verdict")

ByTopic = Mapping[str, tuple["Verdict", ...]]


def theory(
    out: Annotated[Path | None, typer.Option(help="Folder for the table, the verdicts and a page of figures.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check closed forms and identities on lab models, and say what holds. Exits with 1 if a claim is refuted."""
    if out is not None:
        check_writable(out)
    from sinkscope.claims import tally
    from sinkscope.theory import TOPICS, by_topic, refuted

    with only_json(as_json), _watching() as watch:
        verdicts = by_topic(TOPICS, watch)
    every = [verdict for group in verdicts.values() for verdict in group]
    written = _write(verdicts, out) if out is not None else []
    if as_json:
        show_json({"verdicts": [verdict.to_dict() for verdict in every]})
    else:
        _show(verdicts)
        show(plain(f"\n{tally(every)}"))
        if written:
            show(plain(f"written: {', '.join(map(str, written))}"))
    if refuted(every):
        raise typer.Exit(REFUTED)


@contextmanager
def _watching() -> Iterator[Callable[[int, int, str], None]]:
    """A bar over the claims, on a terminal only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
    label = TextColumn("{task.description}", markup=False)
    with Progress(*columns, label, console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
        task = bar.add_task("", total=None)

        def watch(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)

        yield watch


def _show(verdicts: ByTopic) -> None:
    from sinkscope.claims import cells

    for topic, group in verdicts.items():
        show(plain(f"\n{topic}"))
        show(table(SHOWN, [cells(verdict, *SHOWN) for verdict in group], numbers_from=len(SHOWN)))


def _write(verdicts: ByTopic, folder: Path) -> list[Path]:
    """The table, the verdicts and the page, each whole or absent; where they are."""
    from sinkscope.claims import markdown
    from sinkscope.report.page import write_page
    from sinkscope.report.theory_page import theory_page
    from sinkscope.theory import sinks_by_length, spread_by_depth
    from sinkscope.training import versions

    every = [verdict for group in verdicts.values() for verdict in group]
    write_text(folder / TABLE, markdown(every) + "\n")
    write_json(folder / VERDICTS, [verdict.to_dict() for verdict in every])
    write_page(theory_page(verdicts, sinks_by_length(), spread_by_depth(), versions()), folder / PAGE)
    return [folder / TABLE, folder / VERDICTS, folder / PAGE]
