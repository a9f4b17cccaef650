"""What a person sees while a run trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from sinkscope.training.run import LogWriter


def console() -> Console:
    """Where progress and announcements go; results on standard output stay clean."""
    return Console(stderr=True, highlight=False)


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers' own bars (one per file it writes) off the terminal."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class LiveProgress(TrainerCallback):
    """A bar on a terminal (step, losses, sink rate, tokens/s, time left); elsewhere a line per evaluation."""

    def __init__(self, name: str, rows: LogWriter, screen: Console) -> None:
        self.name = name
        self.rows = rows
        self.screen = screen
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(table_column=Column(min_width=9)),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(min_width=7)),
            console=screen,
            disable=not screen.is_terminal,
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.task = self.bar.add_task(self.name, total=state.max_steps, completed=state.global_step, values="")
        self.bar.start()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._show(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._show(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self.screen.is_terminal:
            values = summary({**self.rows.last, **self.rows.pending})
            self.screen.print(f"{self.name}: step {state.global_step}/{state.max_steps} {values}", soft_wrap=True)

    def _show(self, state: TrainerState) -> None:
        self.bar.update(self.task, completed=state.global_step, values=summary(self.rows.last))

    def stop(self) -> None:
        """Leave the terminal as it was."""
        self.bar.stop()


def summary(row: dict[str, Any]) -> str:
    """The newest values in a few words."""
    shown = {
        "loss": "loss {:.2f}",
        "validation_loss": "val {:.2f}",
        "sink/position_0": "sink {:.1f}%",
        "tokens_per_second": "{:,.0f} tok/s",
    }
    return " ".join(form.format(row[name]) for name, form in shown.items() if row.get(name) is not None)
