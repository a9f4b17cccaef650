from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, GradientNorms, HiddenNorms, Measurement, measure
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import SinkCallback, gradient_metrics, sink_metrics
from sinkscope.training.machine import preserved_rng
from sinkscope.training.run.heads import HeadNumbers
from tests.shapes import unchecked

METRICS = {
    "sink/position_0",
    "sink/strongest_position",
    "sink/strongest",
    "sink/mass",
    "sink/lift",
    "sink/hidden_norm_ratio",
}


class Recorder(TrainerCallback):
    """A reporter: what it is sent at each step."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        self.sent.append((state.global_step, dict(logs)))

    def steps_with(self, name: str) -> list[int]:
        return [step for step, logs in self.sent if name in logs]


def draw_numbers(*ignored: object) -> None:
    torch.rand(1), np.random.rand(), random.random()


class Texts(Dataset):
    """Random tokens; reading an item draws from the global generators, as augmentations do."""

    def __init__(self, count: int = 40, tokens: int = 20) -> None:
        self.ids = torch.randint(0, 61, (count, tokens), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        draw_numbers()
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def llama(dropout: float = 0.1) -> LlamaForCausalLM:
    """A hub model whose training draws random numbers, with attention far from uniform."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        attention_dropout=dropout,
        max_position_embeddings=32,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 8
            layer.self_attn.k_proj.weight *= 8
    return model


def trainer(tmp_path: Path, model: nn.Module | None = None, **options: Any) -> tuple[Trainer, Recorder]:
    recorder = Recorder()
    args = {
        "output_dir": str(tmp_path),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    datasets = {"train_dataset": Texts()}
    for name in ("train_dataset", "eval_dataset"):
        if name in options:
            datasets[name] = options.pop(name)
    made = Trainer(
        model if model is not None else llama(), TrainingArguments(**args | options), callbacks=[recorder], **datasets
    )
    return made, recorder


@pytest.mark.slow
def test_every_reporter_gets_what_measure_says(tmp_path: Path) -> None:
    made, recorder = trainer(tmp_path)
    inputs = Texts().ids[:10, :16]
    made.add_callback(SinkCallback(made, inputs, every=4, epsilon=0.25))
    before = sink_metrics(measure(made.model, inputs, [AttentionReceived("all"), HiddenNorms()]), 0.25)
    made.train()
    after = sink_metrics(measure(made.model, inputs, [AttentionReceived("all"), HiddenNorms()]), 0.25)
    assert recorder.steps_with("sink/position_0") == [0, 4, 6]
    logs = {step: logs for step, logs in recorder.sent if "sink/position_0" in logs}
    for step, expected in ((0, before), (6, after)):
        assert {name: logs[step][name] for name in METRICS} == pytest.approx(expected)
    assert before != after
    assert [entry["step"] for entry in made.state.log_history if "sink/strongest" in entry] == [0, 4, 6]


def test_without_inputs_the_first_tokens_of_the_dataset_are_measured(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path)
    callback = SinkCallback(made, tokens=12, samples=5)
    assert torch.equal(torch.as_tensor(callback.inputs), Texts().ids[:5, :12])


def test_the_evaluation_dataset_comes_first(tmp_path: Path) -> None:
    evaluation = Texts(count=3)
    evaluation.ids += 0
    evaluation.ids.fill_(7)
    for given in (evaluation, {"one": evaluation, "other": Texts()}):
        made, _ = trainer(tmp_path, eval_dataset=given)
        assert torch.equal(torch.as_tensor(SinkCallback(made, tokens=8).inputs), torch.full((3, 8), 7))


def test_padding_and_short_items_are_left_out(tmp_path: Path) -> None:
    items = [
        {"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1]},
        {"input_ids": [0, 0, 4, 5, 6, 7], "attention_mask": [0, 0, 1, 1, 1, 1]},
        {"input_ids": [8, 9, 10, 11, 0], "attention_mask": [1, 1, 1, 1, 0]},
    ]
    made, _ = trainer(tmp_path, train_dataset=items)
    assert torch.as_tensor(SinkCallback(made, tokens=4).inputs).tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.slow
def test_training_is_not_disturbed(tmp_path: Path) -> None:
    final = []
    for watched in (False, True):
        model = llama()
        model.register_forward_pre_hook(draw_numbers)
        made, recorder = trainer(tmp_path, model, eval_strategy="steps", eval_steps=3, eval_dataset=Texts(count=8))
        if watched:
            made.add_callback(SinkCallback(made, every=1, tokens=10))
        random.seed(2), np.random.seed(2)
        made.train()
        final.append((model.state_dict(), recorder, random.random(), np.random.rand(), torch.rand(1)))
    (plain, reported, *drawn), (seen, with_sink, *drawn_too) = final
    assert all(torch.equal(plain[name], seen[name]) for name in plain)
    assert drawn == drawn_too
    for name in ("loss", "eval_loss"):
        assert with_sink.steps_with(name) == reported.steps_with(name) != []
    losses = [[logs["loss"] for _, logs in each.sent if "loss" in logs] for each in (reported, with_sink)]
    assert losses[0] == losses[1]
    assert with_sink.steps_with("sink/strongest") == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_gradients_are_those_of_the_training_step(tmp_path: Path) -> None:
    """Of both micro-batches, with the weights that follow from them unchanged."""

    class Begun(TrainerCallback):
        weights: list[dict[str, Tensor]] = []  # noqa: RUF012

        def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
            self.weights.append(copy.deepcopy(model.state_dict()))

    def read(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if module.training:  # and not measured
            batches.append(kwargs["input_ids"])

    final, inputs = [], Texts().ids[:2, :16]
    for watched in (False, True):
        made, recorder = trainer(tmp_path, llama(0.0), max_steps=3, gradient_accumulation_steps=2)
        batches: list[Tensor] = []
        Begun.weights.clear()
        hook = made.model.register_forward_pre_hook(read, with_kwargs=True)
        made.add_callback(SinkCallback(made, inputs, every=2, gradients=watched))
        made.add_callback(Begun())
        made.train()
        hook.remove()
        final.append((made.model.state_dict(), recorder))
    (plain, silent), (seen, logged) = final
    assert all(torch.equal(plain[name], seen[name]) for name in plain)
    assert (logged.steps_with("sink/gradient_ratio"), silent.steps_with("sink/gradient_ratio")) == ([2, 3], [])
    values = [logs for _, logs in logged.sent if "sink/gradient_ratio" in logs]
    assert len(batches) == 6
    model = llama(0.0)
    for step, found in zip((2, 3), values, strict=True):
        model.load_state_dict(Begun.weights[step - 1])
        with GradientNorms(model) as gradients:
            for ids in batches[2 * step - 2 : 2 * step]:
                model(ids, labels=ids).loss.backward()
        expected = gradient_metrics(gradients)
        assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert not any(module._forward_pre_hooks for module in made.model.modules())


def test_a_step_that_raises_leaves_no_reading(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(module: nn.Module, gradient: Any, output: Any) -> None:
        raise Interrupted

    def hooks() -> list[int]:
        return [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]

    model = llama(0.0)
    made, recorder = trainer(tmp_path, model, max_steps=2)
    made.add_callback(SinkCallback(made, every=1, tokens=10, gradients=True))
    handle, before = model.lm_head.register_full_backward_hook(interrupt), hooks()
    with pytest.raises(Interrupted):
        made.train()
    assert hooks() == before
    handle.remove()
    made.train()
    assert recorder.steps_with("sink/gradient_ratio") == [1, 2]


def test_logged_gradients_are_means_over_rows_and_medians_over_layers() -> None:
    model, ids = llama(0.0), Texts().ids[:3, :9]
    with GradientNorms(model) as gradients:
        model(ids, labels=ids).loss.backward()
    data = gradients.data.sel(branch="mixer").isel(position=0)
    logged = gradient_metrics(gradients)
    bloat = (data.norm_output / data.arriving).to_numpy().mean(0)
    assert logged["sink/gradient_bloat"] == pytest.approx(float(np.median(bloat)))
    ratio = gradients.sink_ratio(0).to_numpy()[:, :, 0].mean(0)
    assert logged["sink/gradient_ratio"] == pytest.approx(float(np.median(ratio)))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states[:-1]
    eps = model.config.rms_norm_eps
    factors = [float((state[:, 0].square().mean(-1) + eps).rsqrt().mean()) for state in states]
    assert logged["sink/gradient_norm_factor"] == pytest.approx(float(np.median(factors)), rel=1e-3)


@pytest.mark.slow
def test_modes_are_left_as_they_were(tmp_path: Path) -> None:
    class Modes(TrainerCallback):
        seen: list[list[bool]] = []  # noqa: RUF012

        def on_optimizer_step(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
            model.model.layers[0].eval()

        def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
            self.seen.append([module.training for module in model.modules()])

    made, _ = trainer(tmp_path, max_steps=1)
    made.add_callback(Modes())
    made.add_callback(SinkCallback(made, every=1, tokens=10))
    made.add_callback(Modes())
    made.train()
    before, after = Modes.seen
    assert before == after
    assert set(before) == {True, False}


def test_control_that_others_set_survives(tmp_path: Path) -> None:
    class Stopper(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
            if "sink/strongest" in logs and state.global_step == 2:
                control.should_training_stop = True

    made, recorder = trainer(tmp_path)
    made.add_callback(Stopper())
    made.add_callback(SinkCallback(made, every=1, tokens=10))
    made.train()
    assert made.state.global_step == 2
    assert recorder.steps_with("loss") == [2]


@pytest.mark.parametrize("event", ["on_step_end", "on_epoch_end", "on_evaluate"])
def test_an_early_end_is_measured(event: str, tmp_path: Path) -> None:
    class Stopper(TrainerCallback):
        pass

    def stop(self: Stopper, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = True

    setattr(Stopper, event, stop)
    evaluated = {"eval_strategy": "epoch", "eval_dataset": Texts(count=2)} if event == "on_evaluate" else {}
    made, recorder = trainer(tmp_path, train_dataset=Texts(count=8), **evaluated)
    made.add_callback(SinkCallback(made, every=100, tokens=10))
    made.add_callback(Stopper())
    made.train()
    assert made.state.global_step < 6
    assert recorder.steps_with("sink/strongest") == [0, made.state.global_step]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    model = llama()
    made, _ = trainer(tmp_path, model)
    made.add_callback(SinkCallback(made, every=3, tokens=10))
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    made.train()
    assert hooks == [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]


def test_other_processes_leave_it_to_the_main_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, recorder = trainer(tmp_path)
    made.add_callback(SinkCallback(made, every=1, tokens=10))
    monkeypatch.setattr(made, "is_world_process_zero", lambda: False)
    made.train()
    assert recorder.steps_with("sink/strongest") == []


def test_sharded_weights_are_refused(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path)
    made.is_fsdp_enabled = True
    with pytest.raises(InputError, match="weights are sharded: measure its checkpoints"):
        SinkCallback(made, tokens=10)


def test_nan_weights_are_reported_and_stop_nothing(tmp_path: Path) -> None:
    made, recorder = trainer(tmp_path, learning_rate=1e38)
    made.add_callback(SinkCallback(made, every=6, tokens=10))
    made.train()
    assert made.state.global_step == 6
    last = [logs for step, logs in recorder.sent if step == 6 and "sink/strongest" in logs]
    assert all(np.isnan(last[0][name]) for name in METRICS)


def test_bf16_autocast(tmp_path: Path) -> None:
    made, recorder = trainer(tmp_path, bf16=True)
    made.add_callback(SinkCallback(made, every=6, tokens=10))
    made.train()
    assert recorder.steps_with("sink/strongest") == [0, 6]


def test_numbers_per_head_leave_out_the_documents_that_the_rates_leave_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    apart = {"mask": {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "document"}}}
    model = LabForCausalLM(LabConfig(vocab_size=61, hidden_size=16, num_hidden_layers=2, attention=apart))
    ids = torch.randint(0, 61, (4, 40))
    documents = torch.tensor([0] * 24 + [1] * 8 + [2] * 8).expand(4, -1)
    heads, kept = HeadNumbers.build(ids[:, 0], 40, 61), {}
    long = measure(model, ids[:, :24], [AttentionReceived("all"), HiddenNorms(), *heads.observers])
    expected = heads(model, long, 0.3)
    made, _ = trainer(tmp_path, model)
    inputs = {"input_ids": ids, "document_ids": documents}
    made.add_callback(SinkCallback(made, inputs, heads=heads, keep=kept.__setitem__))
    made.callback_handler.on_train_begin(made.args, made.state, made.control)
    for name in ("alpha/first", "key_norm", "hidden_norm"):
        assert kept[0][name] == pytest.approx(expected[name], rel=1e-3)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(Texts())


@pytest.mark.parametrize(
    ("options", "callback", "message"),
    [
        ({"train_dataset": Stream()}, {}, "needs inputs: the trainer has no dataset with an order"),
        ({}, {"tokens": 64}, "no item of the dataset has 64 tokens"),
        ({"train_dataset": [{"text": "raw"}]}, {}, "hold no 'input_ids'"),
        ({}, {"tokens": 10, "every": 0}, "every = 0"),
        ({}, {"tokens": 10, "every": "all"}, "every = 'all'"),
        ({}, {"tokens": 10, "batch_size": 0}, "batch_size = 0"),
        ({}, {"tokens": 10.0}, "tokens = 10.0"),
        ({}, {"tokens": 10, "samples": 0}, "samples = 0"),
        ({}, {"tokens": 10, "epsilon": 2.0}, "epsilon = 2.0"),
    ],
)
def test_bad_input_is_said_before_training(
    options: dict[str, Any], callback: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made, _ = trainer(tmp_path, **options)
    with pytest.raises(InputError, match=message):
        SinkCallback(made, **callback)


def planted(received: np.ndarray, norms: np.ndarray) -> Measurement:
    return Measurement(
        xr.Dataset(
            {
                "attention_received": (("sample", "layer", "head", "position"), received),
                "hidden_norm": (("sample", "depth", "position"), norms),
                "tokens": (("sample", "layer"), np.full(received.shape[:2], received.shape[-1])),
            },
            coords={
                "position": np.arange(received.shape[-1]),
                "stack": ("layer", ["decoder"] * received.shape[1]),
            },
            attrs={"record": "{}"},
        )
    )


def test_metrics_of_a_planted_sink() -> None:
    received = np.full((2, 2, 2, 12), 0.05)
    received[..., 2] = 0.8  # the sink is at position 2 …
    received[0, 0, 0, 0] = 0.9  # … and one of eight heads has one at position 0
    received[..., 11] = 1.0  # the last query sees itself alone: no sink
    norms = np.ones((2, 3, 12))
    norms[:, 1, 0] = 4.0
    assert sink_metrics(planted(received, norms), 0.3) == pytest.approx(
        {
            "sink/position_0": 12.5,
            "sink/strongest_position": 2,
            "sink/strongest": 100.0,
            "sink/mass": 100 * 0.8 / 8,
            "sink/lift": (0.9 + 7 * 0.05) / 8 / ((0.05 + 0.8 + 0.05) / 3),
            "sink/hidden_norm_ratio": 4.0,
        }
    )


def test_without_a_sink_the_strongest_is_where_attention_goes() -> None:
    received = np.full((1, 1, 1, 12), 0.05)
    received[..., 3] = 0.1
    metrics = sink_metrics(planted(received, np.ones((1, 2, 12))), 0.3)
    assert (metrics["sink/strongest_position"], metrics["sink/strongest"]) == (3, 0.0)


def test_random_generators_come_back_after_an_error() -> None:
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    with pytest.raises(KeyError), preserved_rng():
        random.random(), np.random.rand(), torch.rand(1), {}["x"]
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected


@pytest.mark.slow
@unchecked
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("how", ["by the trainer", pytest.param("beforehand", marks=pytest.mark.release)])
def test_compiled_models(how: str, tmp_path: Path) -> None:
    final = []
    for watched in (False, True):
        torch.compiler.reset()
        model = llama(dropout=0.0)
        if how == "beforehand":
            compiled, options = torch.compile(model, backend="eager"), {"remove_unused_columns": False}
        else:
            compiled, options = model, {"torch_compile": True, "torch_compile_backend": "eager"}
        made, recorder = trainer(tmp_path, compiled, **options)
        if watched:
            made.add_callback(SinkCallback(made, every=2, tokens=10))
        made.train()
        final.append(model.state_dict())
    assert recorder.steps_with("sink/strongest") == [0, 2, 4, 6]
    assert all(torch.equal(value, final[1][name]) for name, value in final[0].items())
