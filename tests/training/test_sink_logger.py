"""`SinkCallback` without a trainer at hand, and `SinkLogger` without one at all."""

from __future__ import annotations

import copy
import re
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from sinkscope.errors import InputError
from sinkscope.measurement import measure
from sinkscope.training import SinkCallback, SinkLogger, sink_metrics

ROWS = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 101, (8, 12))]


def trainer(model: Any, folder: Path, callbacks: list[Any]) -> Trainer:
    arguments = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, report_to="none", use_cpu=True, disable_tqdm=True
    )
    return Trainer(deepcopy(model), arguments, train_dataset=ROWS, callbacks=callbacks)


@pytest.mark.slow
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


def test_a_second_trainer_takes_the_place_of_the_first(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    callback = SinkCallback(every=2, tokens=10)
    first, second = (trainer(copy.deepcopy(tiny_llama), tmp_path / name, [callback]) for name in ("1", "2"))
    second.train()
    assert callback.trainer is second
    assert not any("sink/position_0" in row for row in first.state.log_history)
    assert any("sink/position_0" in row for row in second.state.log_history)


def test_without_a_trainer_it_says_so(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    made = trainer(tiny_llama, tmp_path, [])
    with pytest.raises(InputError, match=r"not called by a transformers\.Trainer"):
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


PAGE = Path(__file__).parents[2] / "docs" / "sink_callback.md"
NAMES = set(re.findall(r"^\| `(sink/\w+)` \|", PAGE.read_text(), re.MULTILINE))
"""As the documentation lists them."""

needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: (step, value) by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_the_page_lists_every_name(tiny_llama: LlamaForCausalLM) -> None:
    assert sink_metrics(measure(tiny_llama, torch.randint(0, 101, (4, 12)))).keys() == NAMES


@pytest.mark.slow
@needs_tensorboard
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_tensorboard_shows_the_names_of_the_page_behind_train(
    tiny_llama: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    arguments = TrainingArguments(
        str(tmp_path / "run"), max_steps=4, per_device_train_batch_size=2, report_to="tensorboard", use_cpu=True
    )
    callback = SinkCallback(every=2, tokens=10)
    made = Trainer(deepcopy(tiny_llama), arguments, train_dataset=ROWS, callbacks=[callback])
    made.train()
    shown = scalars(tmp_path / "board")
    assert {name for name in shown if "sink/" in name} == {f"train/{name}" for name in NAMES}
    for name in NAMES:
        logged = [(row["step"], row[name]) for row in made.state.log_history if name in row]
        assert [step for step, _ in logged] == [0, 2, 4]
        assert shown[f"train/{name}"] == [(step, pytest.approx(value)) for step, value in logged]


@pytest.mark.slow
@needs_tensorboard
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_trackers_of_accelerate_show_the_names_of_the_page(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    accelerator.init_trackers("board")
    logger = SinkLogger(accelerator, tiny_llama, torch.randint(0, 101, (4, 12)), every=2)
    found = [logger(step) for step in range(3)]
    accelerator.end_training()
    shown = scalars(tmp_path / "board")
    assert shown.keys() == NAMES
    for name in NAMES:
        assert shown[name] == [(step, pytest.approx(found[step][name])) for step in (0, 2)]
