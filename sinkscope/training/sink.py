"""The attention sink as metrics of any `transformers.Trainer`, or of a loop with `accelerate`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sinkscope.errors import InputError, check_whole
from sinkscope.hooks import check_weights
from sinkscope.measurement import (
    AttentionReceived,
    GradientNorms,
    HiddenNorms,
    Measurement,
    measure,
    metrics,
    received,
    strongest_position,
)
from sinkscope.measurement.metrics import check_epsilon
from sinkscope.measurement.selection import most_queries
from sinkscope.sinks import FEWEST
from sinkscope.training.distributed.full_model import full_model
from sinkscope.training.machine import preserved_rng
from sinkscope.training.run.heads import HeadNumbers

METRICS = (
    "sink/position_0",
    "sink/strongest_position",
    "sink/strongest",
    "sink/mass",
    "sink/lift",
    "sink/hidden_norm_ratio",
)
GRADIENTS = (
    *("sink/gradient_ratio", "sink/gradient_bloat", "sink/gradient_compress", "sink/gradient_change"),
    "sink/gradient_norm_factor",
)

Inputs = Tensor | Mapping[str, Tensor]
Keep = Callable[[int, dict[str, list[float | None]]], None]


class SinkCallback(TrainerCallback):
    """Measures the attention sink on a fixed batch every `every` steps and logs it through the trainer.

    Pass it to a trainer, `Trainer(..., callbacks=[SinkCallback()])`, or add it later,
    `trainer.add_callback(SinkCallback(trainer))`. Every reporter of the trainer then gets the values of `sink_metrics`
    before the first step, at each multiple of `every`, and at the end, also where training stops early.

    The weights after training are bit for bit those without the callback: random generators, modes and the trainer's
    control flow are left as they were. With several processes the main one measures (DDP). Under FSDP2 the weights are
    gathered there each time, in a copy of the whole model; add the callback before training begins.

    Args:
        trainer: the trainer to log through; None finds the trainer that calls the callback.
        inputs: token ids (N, T) or a dict of model inputs, as for `sinkscope.measure`; None takes the first `tokens`
            tokens of `samples` items of the trainer's evaluation (else training) dataset.
        every: steps between measurements.
        epsilon: the share of attention above which a token is a sink.
        tokens: the number of tokens per sample, if `inputs` is None.
        samples: the number of samples, if `inputs` is None.
        batch_size: samples that are run at once.
        also: further metrics of the model, logged with the sink.
        gradients: log `gradient_metrics` as well, read from the training's own backward pass at each measured step.
        heads: numbers per head, which are too many for a reporter.
        keep: called with each measured step and its numbers per head.

    Raises `InputError` for weights that DeepSpeed or FSDP 1 shards, for a dataset without an order, and for one
    without an item of `tokens` tokens.
    """

    def __init__(
        self,
        trainer: Trainer | None = None,
        inputs: Inputs | None = None,
        *,
        every: int = 100,
        epsilon: float = 0.3,
        tokens: int = 64,
        samples: int = 100,
        batch_size: int = 32,
        also: Callable[[Any], Mapping[str, float]] | None = None,
        gradients: bool = False,
        heads: HeadNumbers | None = None,
        keep: Keep = lambda step, numbers: None,
    ) -> None:
        for name, value in (("every", every), ("tokens", tokens), ("samples", samples), ("batch_size", batch_size)):
            check_whole(name, value)
        check_epsilon(epsilon)
        self.every = every
        self.epsilon = epsilon
        self.batch_size = batch_size
        self.also = also
        self.gradients = gradients
        self._reading: GradientNorms | None = None
        self.heads, self.keep = heads, keep
        self.first = (tokens, samples)
        self.given = self.inputs = inputs
        self.trainer: Any = None
        if trainer is not None:
            self._bind(trainer)

    def _bind(self, trainer: Trainer) -> None:
        """Use this trainer."""
        self.trainer = trainer
        self.full_model = full_model(trainer)
        self.inputs = _first_tokens(trainer, *self.first) if self.given is None else self.given
        if self.gradients:
            self.trainer.training_step = self._read(trainer.training_step)

    def _read(self, training_step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The trainer's method, read at measured steps: open only inside it, so that a step that raises leaves nothing.

        The micro-batches of a step are read one after the other, by one reading.
        """

        def read_step(*args: Any, **kwargs: Any) -> Tensor:
            with self._reading or nullcontext():
                return training_step(*args, **kwargs)

        return read_step

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Binds the trainer before it wraps or shards its model; a second trainer takes the place of the first."""
        self._bind(_calling_trainer(self))
        return control

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self.trainer is None:  # added after the trainer was built
            self._bind(_calling_trainer(self))
        return self._log(control) if state.global_step == 0 else control

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        read = self.gradients and state.is_world_process_zero and self._due(state.global_step + 1, state)
        self._reading = GradientNorms(kwargs["model"]) if read else None
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        reading, self._reading = self._reading, None
        if not self._due(state.global_step, state):
            return control
        return self._log(control, {} if reading is None else gradient_metrics(reading))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        # The trainer logs a summary when training has ended, which may be early: before any better weights are loaded
        # and before the reporters hear of the end and close.
        ended = "train_runtime" in (logs or {}) and not self._due(state.global_step, state)
        return self._log(control) if ended else control

    def _due(self, step: int, state: TrainerState) -> bool:
        return step % self.every == 0 or step >= state.max_steps

    def _log(self, control: TrainerControl, gradients: Mapping[str, float] | None = None) -> TrainerControl:
        with self.full_model.model() as model:
            if model is None:
                return control
            values = self._metrics(model) | dict(gradients or {})
        due = control.should_log
        self.trainer.control = control
        self.trainer.log(values)
        self.trainer.control.should_log = due  # logging clears it, and the loss of this step would not be logged
        return self.trainer.control

    def _metrics(self, model: nn.Module) -> dict[str, float]:
        try:
            check_weights(model)
        except InputError:
            return dict.fromkeys(METRICS, math.nan)  # the trainer decides what to do about NaN weights
        with preserved_rng():
            observers = [AttentionReceived("all"), HiddenNorms(), *(self.heads.observers if self.heads else ())]
            measured = _of_long_texts(measure(model, self.inputs, observers, batch_size=self.batch_size))
            if self.heads is not None:
                self.keep(self.trainer.state.global_step, self.heads(model, measured, self.epsilon))
            values = sink_metrics(measured, self.epsilon)
            return values if self.also is None else values | dict(self.also(model))


class SinkLogger:
    """Measures the attention sink in a training loop with `accelerate`.

    `logger = SinkLogger(accelerator, model, inputs, every=100)`, and `logger(step)` after each step of the loop. At
    each multiple of `every` the main process measures the unwrapped model on `inputs` (token ids (N, T) or a dict) and
    logs the values of `sink_metrics` through `accelerator.log(..., step=step)`; every tracker gets them under the same
    names. `logger(step)` returns the values; None if nothing was due, and in the other processes. Random generators and
    modes are left as they were. Raises `InputError` for sharded weights (FSDP, DeepSpeed, Megatron), since no process
    has all of them.
    """

    def __init__(
        self,
        accelerator: Any,
        model: nn.Module,
        inputs: Inputs,
        *,
        every: int = 100,
        epsilon: float = 0.3,
        batch_size: int = 32,
    ) -> None:
        check_whole("every", every)
        check_whole("batch_size", batch_size)
        check_epsilon(epsilon)
        kind = str(getattr(accelerator, "distributed_type", "")).upper()
        if sharded := next((name for name in ("FSDP", "DEEPSPEED", "MEGATRON") if name in kind), None):
            raise InputError(f"SinkLogger: under {sharded} no process has all the weights: use DDP, or a Trainer")
        self.accelerator, self.model, self.inputs = accelerator, model, inputs
        self.every, self.epsilon, self.batch_size = every, epsilon, batch_size

    def __call__(self, step: int) -> dict[str, float] | None:
        if step % self.every or not self.accelerator.is_main_process:
            return None
        model = self.accelerator.unwrap_model(self.model)
        try:
            check_weights(model)
        except InputError:
            values = dict.fromkeys(METRICS, math.nan)  # the loop decides what to do about NaN weights
        else:
            with preserved_rng():
                observers = [AttentionReceived("all"), HiddenNorms()]
                measured = measure(model, self.inputs, observers, batch_size=self.batch_size)
                values = sink_metrics(measured, self.epsilon)
        self.accelerator.log(values, step=step)
        return values


def _calling_trainer(callback: TrainerCallback) -> Trainer:
    """The trainer that calls the callback, found on the call stack, since events do not pass it."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer) and callback in caller.callback_handler.callbacks:
            return caller
        frame = frame.f_back
    raise InputError("SinkCallback is not called by a transformers.Trainer: pass one, SinkCallback(trainer)")


def sink_metrics(measurement: Measurement, epsilon: float = 0.3) -> dict[str, float]:
    """The metrics of a measurement that are logged in training.

    - `sink/position_0`: the sink rate of the first position, percent
    - `sink/strongest_position`, `sink/strongest`: the position (0-based) with the highest rate among those that more
      than half of the queries can see (`measurement.strongest_position`), and that rate; NaN if nothing was measured
    - `sink/mass`, `sink/lift`: `metrics.sink_mass` (percent) and `metrics.step` of the first position
    - `sink/hidden_norm_ratio`: ‖h_0‖ / mean_{t>0} ‖h_t‖, averaged over samples, at the depth where it is largest

    Texts in which no key is seen by min(17, N) queries, N being the most in any text, do not count: packed documents
    are texts of their own, and in one of nine tokens uniform attention alone gives the first more than 0.3.
    """
    measurement = _of_long_texts(measurement)
    strongest = strongest_position(measurement.data, epsilon)
    position, rate = (math.nan, math.nan) if strongest is None else (strongest.position, strongest.rate)
    ratio = float(measurement.hidden_norm_ratio().max())
    first = measurement.sink_rate(epsilon=epsilon, position=0)
    values = received(measurement.data)
    mass, step = float(metrics.sink_mass(values)[0]), float(metrics.step(values)[0])
    return dict(zip(METRICS, (first, position, rate, mass, step, ratio), strict=True))


def _of_long_texts(measurement: Measurement) -> Measurement:
    """Without the texts that `sink_metrics` leaves out; numbers per head leave out the same."""
    most = most_queries(measurement.data).max(1)
    return Measurement(measurement.data.isel(sample=most >= min(FEWEST, most.max())))


def gradient_metrics(gradients: GradientNorms) -> dict[str, float]:
    """The metrics of a backward pass that are logged in training, of the first token in attention's branches.

    `sink/gradient_ratio`: R_GS, `sink/gradient_bloat`, `sink/gradient_compress`, `sink/gradient_change`, and
    `sink/gradient_norm_factor`: the part of compress that is 1 / rms(x), as `GradientNorms` defines them: means over
    rows, then medians over layers. NaN for models that are not pre-norm.
    """
    ratios = gradients.ratios().isel(position=0)
    factor = gradients.data.norm_factor.isel(position=0)
    by_row = [gradients.sink_ratio(), ratios.bloat, ratios.compress, ratios.change, factor]
    means = [values.sel(branch="mixer").mean("sample") for values in by_row]
    return dict(zip(GRADIENTS, (float(mean.median()) for mean in means), strict=True))


def _first_tokens(trainer: Trainer, tokens: int, samples: int) -> Tensor:
    dataset = trainer.eval_dataset if trainer.eval_dataset is not None else trainer.train_dataset
    if isinstance(dataset, Mapping) and not isinstance(dataset, Dataset):
        dataset = next(iter(dataset.values()))
    if dataset is None or isinstance(dataset, IterableDataset):
        raise InputError("SinkCallback needs inputs: the trainer has no dataset with an order to take items from")
    rows: list[Tensor] = []
    # A dataset may draw at random when an item is read.
    with preserved_rng():
        for index in range(len(dataset)):
            ids = _unpadded(dataset[index])
            if len(ids) >= tokens:
                rows.append(ids[:tokens])
            if len(rows) == samples:
                break
    if not rows:
        raise InputError(f"SinkCallback: no item of the dataset has {tokens} tokens: pass inputs, or fewer tokens")
    return torch.stack(rows)


def _unpadded(item: Mapping[str, Any]) -> Tensor:
    if "input_ids" not in item:
        raise InputError("SinkCallback needs inputs: the items of the trainer's dataset hold no 'input_ids'")
    ids = torch.as_tensor(item["input_ids"])
    return ids[torch.as_tensor(item["attention_mask"]).bool()] if "attention_mask" in item else ids
