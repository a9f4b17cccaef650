"""The metric log: one JSON object per line, every line whole; and the callback that writes what `Trainer` logs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sinkscope.errors import InputError
from sinkscope.files import write_text

LOG = "log.jsonl"
RENAMED = {"eval_loss": "validation_loss"}
HEADS = "heads"  # a row's numbers per head: lists by name
MEASURED = ("sink/", "task/")  # prefixes of the names of what is measured on the model
KEPT = {"loss", "activation_penalty", "z_loss", "grad_norm", "learning_rate", "validation_loss"}


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line. Raises `InputError` if it cannot be written."""
    line = json.dumps(dict(row), allow_nan=False)
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log, none if there is no file. Drops a last line that a killed process left unfinished.

    Raises `InputError` if another line is not a JSON object with a `step`.
    """
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError(f"{path}, line {number} is not an object with a step")
        rows.append(row)
    return rows


def cut(path: Path, step: int) -> list[dict[str, Any]]:
    """Cut a log back to the rows up to `step`, atomically, and return them."""
    rows = [row for row in read_rows(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def json_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with None for every number that is not finite, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _without_heads(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != HEADS}


class LogWriter(TrainerCallback):
    """Appends one row per logged step, with everything that was logged at that step.

    A row has `step` and, if they apply: `loss` (mean since the previous row over the steps with a token to predict;
    without `activation_penalty` and `z_loss`, which have means of their own), `grad_norm`, `learning_rate`,
    `tokens_per_second` (of training alone), `validation_loss`, `sink/*`, `seconds` of the run without its
    interruptions, and the `heads` passed to `keep`. A row is on the disk before the next step begins and before a
    checkpoint of its step is written.

    Args:
        path: the log; None writes nothing, for all processes but the main one, since all must log at the same steps.
        tokens_per_step: for `tokens_per_second`.
        kept: the rows from before an interruption.
    """

    def __init__(self, path: Path | None, *, tokens_per_step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        self.path = path
        self.tokens_per_step = tokens_per_step
        self.pending: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        for row in kept:
            self.last |= _without_heads(row)
        self._began = time.monotonic() - self.last.get("seconds", 0.0)
        self._since: float | None = None
        self._step_ended = 0.0
        self._steps = 0

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def flush(self) -> None:
        """Write the pending row, if there is one."""
        if self.pending:
            row = json_numbers(self.pending)
            if self.path is not None:
                append_row(self.path, row)
            self.last |= _without_heads(row)
            self.pending = {}

    def keep(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Add numbers per head, which are JSON-able, to the row of a step."""
        if self.pending.get("step", step) != step:
            self.flush()
        self.pending |= {"step": step, HEADS: dict(numbers)}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        state.compute_steps(args, state.max_steps)  # a checkpoint restores the frequencies it was written with

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.flush()
        if self._since is None:
            self._since, self._steps = time.monotonic(), 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._steps += 1
        self._step_ended = time.monotonic()
        if control.should_save or control.should_evaluate:
            control.should_log = True  # a loss averaged across a checkpoint would differ after a resume

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        named: dict[str, Any] = {RENAMED.get(name, name): value for name, value in (logs or {}).items()}
        values = {name: value for name, value in named.items() if name in KEPT or name.startswith(MEASURED)}
        if not values:
            return
        if self.pending.get("step", state.global_step) != state.global_step:
            self.flush()
        if "loss" in values:
            values["tokens_per_second"] = self._throughput()
        elif self._since is not None:
            self._since += time.monotonic() - self._step_ended  # measuring does not count as training
        self.pending |= {"step": state.global_step, **values, "seconds": round(self.seconds, 3)}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.flush()

    def _throughput(self) -> float | None:
        if self._since is None:
            return None
        # The clock starts again with the next step, so evaluating and saving do not count.
        elapsed = time.monotonic() - self._since
        self._since = None
        return round(self._steps * self.tokens_per_step / elapsed, 1)
