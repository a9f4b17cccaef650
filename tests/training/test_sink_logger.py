"""`SinkCallback` without a trainer at hand, and `SinkLogger` without one at all."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from sinkscope.errors import InputError
from sinkscope.probes import measure
from sinkscope.training import SinkCallback, SinkLogger, sink_metrics

ROWS = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 101, (8, 12))]


def trainer(model: Any, folder: Path, callbacks: list[Any]) -> Trainer:
    arguments = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, report_to="none", use_cpu=True, disable_tqdm=True
    )
    return Trainer(deepcopy(model), arguments, train_dataset=ROWS, callbacks=callbacks)


def test_it_finds_the_trainer_that_calls_it(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    rows = []
    for how in ("given", "found", "added"):
        callback = SinkCallback(every=2, tokens=10)
        made = trainer(tiny_llama, tmp_path / how, [callback] if how == "found" else [])
        if how == "given":
            callback = SinkCallback(made, every=2, tokens=10)
        if how != "found":
            made.add_callback(callback)
        made.train()
        assert callback.trainer is made
        rows.append([row["sink/position_0"] for row in made.state.log_history if "sink/position_0" in row])
    assert len(rows[0]) == 3
    assert rows[0] == rows[1] == rows[2]


def test_without_a_trainer_it_says_so(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    made = trainer(tiny_llama, tmp_path, [])
    with pytest.raises(InputError, match=r"no transformers\.Trainer calls it"):
        SinkCallback(every=4).on_train_begin(made.args, made.state, made.control)


def test_a_loop_of_ones_own_with_accelerate(tiny_llama: Any) -> None:
    class Accelerator:
        is_main_process, distributed_type = True, "DistributedType.NO"

        def __init__(self) -> None:
            self.logged: list[tuple[dict, int]] = []

        def unwrap_model(self, model: Any) -> Any:
            return model.module

        def log(self, found: dict, step: int) -> None:
            self.logged.append((found, step))

    inputs = torch.randint(0, 101, (4, 12))
    accelerator, wrapped = Accelerator(), torch.nn.Module()
    wrapped.module = tiny_llama
    logger = SinkLogger(accelerator, wrapped, inputs, every=2)
    state = torch.get_rng_state()
    found = [logger(step) for step in range(4)]
    assert torch.equal(state, torch.get_rng_state())
    assert [step for _, step in accelerator.logged] == [0, 2]
    assert (found[1], found[3]) == (None, None)
    assert found[0] == sink_metrics(measure(tiny_llama, inputs))
    accelerator.is_main_process = False
    assert logger(4) is None
    accelerator.distributed_type = "DistributedType.FSDP"
    with pytest.raises(InputError, match="under FSDP no process has all the weights"):
        SinkLogger(accelerator, wrapped, inputs)
