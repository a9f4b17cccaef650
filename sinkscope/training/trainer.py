"""`transformers.Trainer` as a recipe drives it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import EvalLoopOutput

from sinkscope.data import UNSCORED
from sinkscope.errors import InputError
from sinkscope.model import LabForCausalLM
from sinkscope.model.checkpoints import PREFIX, list_checkpoints
from sinkscope.model.reparam import held
from sinkscope.training.distributed.batches import split_batch
from sinkscope.training.distributed.processes import Processes
from sinkscope.training.machine import check_machine, unchanged_matmuls
from sinkscope.training.penalty import PenalizedActivations
from sinkscope.training.recipe import Recipe
from sinkscope.training.run import TrainingDiverged, checkpoints
from sinkscope.training.schedule import scheduler
from sinkscope.training.terms import Terms, z_loss
from sinkscope.training.validation import by_sequence, targets, token_mean


class RecipeTrainer(Trainer):
    """A `Trainer` with the recipe's optimizer and schedule that stops at NaNs and leaves only whole checkpoints.

    `before_saving` is called before every checkpoint, so that the log of its steps is on the disk. With several
    processes, each calls every method; only the main one writes.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        model: nn.Module,
        train: Dataset,
        validation: Dataset,
        folder: Path,
        device: str,
        before_saving: Callable[[], None],
        processes: Processes | None = None,
    ) -> None:
        self.recipe = recipe
        self.before_saving = before_saving
        self.processes = processes or Processes()
        self.optimizer: torch.optim.Optimizer | None
        self.lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None
        self._losses: list[tuple[int, Tensor]] = []
        self._scored_tokens: dict[int, Tensor] = {}  # by step
        self._validation_losses: list[Tensor] = []
        self._begun = -1  # the step whose first pass was made
        penalty = recipe.loss.activation_penalty
        self.penalized = None if penalty is None else PenalizedActivations(penalty, model)
        self.terms = Terms()
        with unchanged_matmuls():
            args = self.arguments(folder, device, validation_windows=len(validation))  # type: ignore[arg-type]
            super().__init__(
                model=model, args=args, train_dataset=train, eval_dataset=validation, data_collator=stacked
            )
        if self.processes.world * self.args.gradient_accumulation_steps > 1:
            _require_one_mean(model)
        self.remove_callback(PrinterCallback)

    def arguments(self, folder: Path, device: str, validation_windows: int) -> TrainingArguments:
        """The recipe as `Trainer`'s arguments."""
        return arguments(self.recipe, folder, device, validation_windows, self.processes.world)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = self.recipe.optimizer.build(self.model if model is None else model)
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        if self.lr_scheduler is None:
            chosen = self.create_optimizer() if optimizer is None else optimizer
            rate = self.recipe.optimizer.lr
            self.lr_scheduler = scheduler(self.recipe.schedule, chosen, steps=num_training_steps, lr=rate)
        return self.lr_scheduler

    def floating_point_ops(self, inputs: Any) -> int:
        """0: nothing reads the count, and computing it visits every parameter at every step."""
        return 0

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        count = num_items_in_batch
        if isinstance(count, Tensor):  # over all processes and passes of a step; clamped, since 0 / 0 is no loss
            # Trainer counts a step after its last pass: during the passes global_step is that of the step before.
            self._scored_tokens[self.state.global_step + 1], count = count, count.clamp(min=1)
        loss, outputs = super().compute_loss(model, inputs, True, count)
        if model.training:
            loss = self._with_terms(loss, outputs, inputs, count)
        return (loss, outputs) if return_outputs else loss

    def _with_terms(self, loss: Tensor, outputs: Any, inputs: Any, count: Any) -> Tensor:
        """The loss plus the terms that the recipe adds to it in training."""
        self.terms.begin()
        if self.penalized is not None:
            # A mean over the pass's sequences: a step's passes add up to one mean, and DDP averages those of processes.
            self.terms.add("activation_penalty", term := self.penalized.term() / self.args.gradient_accumulation_steps)
            loss = loss + term
        if strength := self.recipe.loss.z_loss:
            summed = z_loss(outputs["logits"], inputs["labels"], shifted=self._loss_shifts_labels)
            if count is None:  # a model whose own loss is a mean over this pass
                count = (targets(inputs["labels"], self._loss_shifts_labels) != UNSCORED).sum().clamp(min=1)
            term = strength * summed * self.processes.world / count  # gradients are averaged over processes
            self.terms.add("z_loss", term)
            loss = loss + term
        return loss

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        # The power iteration of σReparam takes its step in the first pass of a step, and none in the others.
        first, self._begun = self._begun != self.state.global_step, self.state.global_step
        with nullcontext() if first else held(self.model):
            loss = super().training_step(model, inputs, num_items_in_batch)
        loss = loss - self.terms.latest()  # the logged loss compares with that of runs without these terms
        self._losses.append((self.state.global_step + 1, loss))
        return loss

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Keeps the loss and the number of tokens of every sequence: Trainer's mean would weigh batches equally."""
        model_inputs = dict(self._prepare_inputs(inputs))
        # Without labels the model computes no loss of its own, which would be a mean over this batch.
        labels = model_inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**model_inputs)["logits"]
        sequences = by_sequence(logits, labels, shifted=self._loss_shifts_labels)
        self._validation_losses.append(self.gather_function(sequences))
        # Trainer needs a loss for each batch; `evaluation_loop` replaces the mean that it makes of them.
        return sequences[:, 0].sum() / sequences[:, 1].sum().clamp(min=1), None, None

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Trainer's, with the mean over tokens as the loss, independent of batches."""
        self._validation_losses = []
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        if output.metrics is not None:
            output.metrics[f"{metric_key_prefix}_loss"] = token_mean(torch.cat(self._validation_losses))
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        norm = torch.as_tensor(logs.get("grad_norm", 0.0))
        if not torch.isfinite(norm):
            raise self._diverged(f"the gradient's norm became {norm.item()}", self.state.global_step)
        if "loss" in logs:
            passes = self.args.gradient_accumulation_steps
            logs |= self.terms.means(passes, lambda term: self.accelerator.reduce(term, reduction="mean"))
            logs["loss"] *= self._steps_per_scored_step()
        super().log(logs, start_time)

    def _steps_per_scored_step(self) -> float:
        """The factor from a mean over steps to one over the steps with a token to predict; NaN if there is none."""
        tokens, self._scored_tokens = self._scored_tokens, {}
        if not tokens:
            return 1.0
        scored = int(torch.stack(list(tokens.values())).gt(0).sum())
        return len(tokens) / scored if scored else math.nan

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Losses are read only here, since reading one makes a GPU wait; a checkpoint is always logged first."""
        if self.control.should_log and self._losses:
            self._require_finite()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _require_finite(self) -> None:
        losses, self._losses = self._losses, []
        # NaN in one process is NaN in the mean, so all processes stop at the same step.
        means = self.accelerator.reduce(torch.stack([loss for _, loss in losses]), reduction="mean")
        for (step, _), loss in zip(losses, means.tolist(), strict=True):
            if not math.isfinite(loss):
                raise self._diverged(f"the loss became {loss}", step)

    def _diverged(self, what: str, step: int) -> InputError:
        hint = "a lower optimizer.lr or a longer schedule.warmup may help"
        return self.processes.reported_once(TrainingDiverged(f"training diverged: {what} at step {step}; {hint}", step))

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.processes.together(self.before_saving)
        self.processes.together(lambda: self._write_checkpoint(*args, **kwargs))

    def full_weights(self) -> dict[str, Tensor] | None:
        """The weights to save, gathered in the main process; None if the model holds all of them."""
        return None

    def _write_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"{PREFIX}{self.state.global_step}"
        try:
            super()._save_checkpoint(*args, **kwargs)
            if not self.processes.main:
                return
            # Before the seal, whose manifest lists every file.
            (checkpoint / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing here reads
            checkpoints.seal(checkpoint)
        except (OSError, RuntimeError, SafetensorError, InputError) as error:
            shutil.rmtree(checkpoint, ignore_errors=True)
            kept = list_checkpoints(folder)
            last = f"{kept[-1].name} is whole" if kept else "there is none before it"
            raise InputError(f"cannot save {checkpoint} ({' '.join(str(error).split())}); {last}") from error
        # Old checkpoints go only after the new one is sealed, so that a whole one is there at any time.
        checkpoints.prune(folder, self.recipe.keep)

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves the state of the main process, under the file name of a single process.

        No step of a recipe draws random numbers, so the other processes need no state to resume.
        """
        if self.processes.main:
            super()._save_rng_state(output_dir)
            several = Path(output_dir) / "rng_state_0.pth"
            if several.exists():
                several.rename(several.with_name("rng_state.pth"))


def arguments(
    recipe: Recipe, folder: Path, device: str, validation_windows: int, world: int = 1, **more: Any
) -> TrainingArguments:
    """The recipe as `Trainer`'s arguments.

    Args:
        recipe: The recipe.
        folder: The folder of the run.
        device: "cpu", or anything else for the device that `Trainer` finds.
        validation_windows: How many windows are scored at each evaluation.
        world: Number of processes.
        more: Further fields of `TrainingArguments`.

    Raises `InputError` if the machine cannot train the recipe, or if the batch does not divide over the processes.
    """
    check_machine(recipe, device)
    batch = split_batch(recipe, world, validation_windows)
    try:
        args = TrainingArguments(
            output_dir=str(folder),
            max_steps=recipe.steps,
            per_device_train_batch_size=batch.train,
            gradient_accumulation_steps=batch.accumulation,
            per_device_eval_batch_size=batch.scored,
            # One denominator for the whole batch: the scored tokens of all processes.
            average_tokens_across_devices=True,
            ddp_find_unused_parameters=False,
            # Trainer takes 0 for no clipping.
            max_grad_norm=recipe.optimizer.clip or 0.0,
            seed=recipe.seed,
            bf16=recipe.precision == "bf16",
            torch_compile=recipe.compile,
            use_cpu=device == "cpu",
            # `TrainingOrder` is in random order already.
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            dataloader_pin_memory=device != "cpu" and torch.cuda.is_available(),
            prediction_loss_only=True,
            logging_steps=recipe.log_every,
            # The filter would log a NaN as the mean of earlier losses, and divergence would not be seen.
            logging_nan_inf_filter=False,
            eval_strategy="steps",
            eval_steps=recipe.eval_every,
            save_steps=recipe.save_every,
            report_to="none",
            disable_tqdm=True,
            **more,
        )
    except ValueError as error:  # the recipe itself is valid: this is about hardware
        raise InputError(f"this machine cannot train the recipe: {' '.join(str(error).split())}") from error
    args.mixed_precision = "bf16" if recipe.precision == "bf16" else "no"  # overrides a launcher's environment
    args._n_gpu = min(args.n_gpu, 1)  # several GPUs in one process would multiply the batch
    return args


def _require_one_mean(model: Any) -> None:
    """Causal and lab models divide by the tokens of the whole batch; BERT's loss is a mean over the part it reads."""
    if model.loss_type != "ForCausalLM" and not isinstance(model, LabForCausalLM):
        raise InputError(
            f"the loss of {type(model).__name__} is a mean over the part of a batch that one process holds at once, "
            "which would weigh the parts wrongly: train it in one process and without micro_batch"
        )


def stacked(windows: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """A batch from windows of one length."""
    return {name: torch.stack([window[name] for window in windows]) for name in windows[0]}
