from __future__ import annotations

from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from sinkscope.training import Run
from sinkscope.training.run import log
from sinkscope.training.run.log import LogWriter, read_rows


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(log.time, "monotonic", lambda: self.now)


def test_rows_merge_what_belongs_to_a_step_and_time_the_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path = Clock(monkeypatch), tmp_path / "log.jsonl"
    args, state, control = TrainingArguments(tmp_path, use_cpu=True), TrainerState(), TrainerControl()
    writer = LogWriter(path, tokens_per_step=50, kept=[{"step": 4, "validation_loss": 3.0, "seconds": 7.0}])

    def step(number: int) -> None:
        writer.on_step_begin(args, state, control)
        clock.now += 2.0
        state.global_step = number
        writer.on_step_end(args, state, control)

    step(5)
    step(6)
    clock.now += 30.0  # the sink is measured …
    writer.on_log(args, state, control, {"sink/position_0": 1.5, "epoch": 0.1})
    writer.on_log(args, state, control, {"loss": 2.0, "learning_rate": 0.1, "epoch": 0.1})
    clock.now += 40.0  # … then the model is evaluated
    writer.on_log(args, state, control, {"eval_loss": 2.5, "eval_runtime": 40.0})
    assert read_rows(path) == []
    step(7)
    writer.on_log(args, state, control, {"loss": float("nan")})
    writer.on_train_end(args, state, control)
    assert read_rows(path) == [
        {
            "step": 6,
            "sink/position_0": 1.5,
            "seconds": 81.0,
            "loss": 2.0,
            "learning_rate": 0.1,
            "tokens_per_second": 25.0,
            "validation_loss": 2.5,
        },
        {"step": 7, "loss": None, "tokens_per_second": 25.0, "seconds": 83.0},
    ]
    assert writer.last["validation_loss"] == 2.5


def test_numbers_of_heads_stand_in_the_row_of_their_step_and_in_no_result(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    args, state, control = TrainingArguments(tmp_path, use_cpu=True), TrainerState(), TrainerControl()
    writer = LogWriter(path, tokens_per_step=50, kept=[{"step": 4, "heads": {"alpha": [0.5]}, "seconds": 7.0}])
    state.global_step = 5
    writer.on_log(args, state, control, {"loss": 2.0})
    state.global_step = 6
    writer.keep(6, {"alpha": [0.25, None]})
    writer.on_log(args, state, control, {"sink/position_0": 1.5})
    writer.on_train_end(args, state, control)
    first, second = read_rows(path)
    assert (first["step"], first.get("heads")) == (5, None)
    assert second | {"seconds": 0} == {
        "step": 6,
        "heads": {"alpha": [0.25, None]},
        "sink/position_0": 1.5,
        "seconds": 0,
    }
    assert "heads" not in writer.last
    run = Run(tmp_path)
    assert "heads" not in run.log
    assert run.heads == {6: {"alpha": [0.25, None]}}
