"""The terminal while a survey runs: a bar over the models, the model at work, and the table as it grows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group
from rich.progress import TimeElapsedColumn

from sinkscope.live import Watch, bars
from sinkscope.measurement import SurveyProgress, SurveyRow
from sinkscope.report.terminal import plain, stderr, table

SHOWN = 20  # rows of the growing table that fit on a screen


def watching() -> Watch[SurveyProgress]:
    """What to hand to `survey`: a live view on a terminal, a line per finished row elsewhere."""
    rows = _Rows()
    return Watch(rows.view, rows.lines, stderr(), transient=True, status=rows.status)


class _Rows:
    """A bar over the models, one over the samples of the model at work, and the newest rows."""

    def __init__(self) -> None:
        self.bars = bars(TimeElapsedColumn(), width=30)
        self.models = self.bars.add_task("models", total=None)
        self.samples = self.bars.add_task("", total=None)

    def lines(self, progress: SurveyProgress) -> Iterator[tuple[int, str]]:
        for index, row in enumerate(progress.rows):
            yield index, f"{row.label}, {row.input} input: {_outcome(row)}"

    def status(self, progress: SurveyProgress) -> str:
        """The model at work, and how much of it is done."""
        at = f"{progress.done} of {progress.samples} samples" if progress.samples else "loading"
        return f"{progress.label}, {progress.input} input: {at} (model {progress.model} of {progress.models})"

    def view(self, progress: SurveyProgress) -> Group:
        ended = not progress.label
        self.bars.update(self.models, completed=progress.model - (not ended), total=progress.models)
        name = plain(f"{progress.label}, {progress.input} input").plain
        self.bars.update(
            self.samples,
            description=name if progress.samples else f"loading {name}",
            completed=progress.done,
            total=progress.samples or None,
            visible=not ended,
        )
        growing = [(row.label, row.input, _outcome(row)) for row in progress.rows[-SHOWN:]]
        return Group(table(("model", "input", "sink rate at position 0"), growing, numbers_from=3), self.bars)


def _outcome(row: SurveyRow) -> str:
    if row.sink_rate is None:
        return row.status
    if row.stacks:
        return ", ".join("–" if at.sink_rate is None else f"{at.stack} {at.sink_rate:.2f} %" for at in row.stacks)
    return f"{row.sink_rate:.2f} % ({row.low:.2f} to {row.high:.2f})"
