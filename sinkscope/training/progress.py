"""What a person sees while a run trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from sinkscope.live import Watch, bars
from sinkscope.training.run import LogWriter


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
        left = TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(min_width=7))
        self.bars = bars(TextColumn("{task.fields[values]}"), left)
        self.task = self.bars.add_task(name, values="", start=False)
        self.watch: Watch[TrainerState] = Watch(self.view, self.lines, screen)

    def view(self, state: TrainerState) -> Progress:
        self.bars.update(self.task, completed=state.global_step, values=summary(self.rows.last))
        return self.bars

    def lines(self, state: TrainerState) -> Iterator[tuple[int, str]]:
        values = summary({**self.rows.last, **self.rows.pending})
        yield state.global_step, f"{self.name}: step {state.global_step}/{state.max_steps} {values}"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.bars.update(self.task, completed=state.global_step, total=state.max_steps)
        self.bars.start_task(self.task)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.watch.screen.is_terminal:
            self.watch(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.watch(state)


def summary(row: dict[str, Any]) -> str:
    """The newest values in a few words."""
    shown = {
        "loss": "loss {:.2f}",
        "validation_loss": "val {:.2f}",
        "sink/position_0": "sink {:.1f}%",
        "tokens_per_second": "{:,.0f} tok/s",
    }
    return " ".join(form.format(row[name]) for name, form in shown.items() if row.get(name) is not None)
