"""What commands that run a trial have in common: the bar, the files, what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.cli.measuring.folders import FILES, Kind, old_files
from sinkscope.report.terminal import plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.report.page import Page, Section
    from sinkscope.trials import Trial


@contextmanager
def watching() -> Iterator[Callable[[int, int, str], None]]:
    """A bar over the texts that arms read, with what was found so far; in a pipe a line every ten seconds."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from sinkscope.live import now_and_then

    columns = (BarColumn(bar_width=30), TaskProgressColumn(), TimeRemainingColumn())
    label = TextColumn("{task.description}", markup=False)
    console = stderr()
    with Progress(*columns, label, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        tell = now_and_then(lambda line: console.print(line, markup=False, highlight=False))

        def watch(done: int, total: int, said: str) -> None:
            bar.update(task, completed=done, total=total, description=said)
            if not console.is_terminal:
                tell(f"{100 * done // max(total, 1)} % ({done} of {total} readings){'; ' + said if said else ''}")

        yield watch


def about(command: Kind, **facts: object) -> dict[str, object]:
    """What a command adds to a trial's record."""
    return {"command": command, **facts}


def write_trial(
    trial: Trial,
    kind: Kind,
    folder: Path,
    *,
    title: str = "",
    more: Sequence[Section] = (),
    extra: Callable[[Path], None] | None = None,
    page: Page | None = None,
) -> list[Path]:
    """Numbers, table and page, in the place of an earlier trial's; `extra` adds a command's own files.

    `page`: a command's own page, in place of the general one."""
    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.page import write_page
    from sinkscope.report.trial_page import trial_page

    page = page or trial_page(trial, title=title, more=more)
    with replacing(folder, partial(old_files, kind)) as draft:
        trial.save(draft / "trial.nc")
        write_json(draft / "trial.json", trial.to_json())
        write_text(draft / "table.csv", trial.table(full=True).to_csv(index=False))
        write_page(page, draft / "figure.html")
        if extra is not None:
            extra(draft)
    return [folder / name for name in FILES[kind] if (folder / name).exists()]


def show_trial(
    trial: Trial,
    paths: Sequence[Path],
    *,
    as_json: bool,
    explain: bool = False,
    cells: Callable[[Trial], tuple[list[str], list[list[str]]]] | None = None,
) -> None:
    """The answer first, then the table (`cells`: a command's own), then where everything is."""
    if as_json:
        show_json(trial.to_json())
        return
    from sinkscope.report.trial_page import rows
    from sinkscope.trials import explained

    show(plain(trial.verdict))
    show(table(*(cells or rows)(trial)))
    if explain:
        show(plain(explained(trial.tolerance)))
    show(plain(f"written: {', '.join(map(str, paths))}"))
