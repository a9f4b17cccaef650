"""`transformers.Trainer` as a recipe drives it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from sinkscope.errors import InputError
from sinkscope.training import checkpoints
from sinkscope.training.recipe import Recipe
from sinkscope.training.schedule import scheduler
from sinkscope.training.store import TrainingDiverged

DEVICES = ("auto", "cpu")


class RecipeTrainer(Trainer):
    """A `Trainer` with the recipe's optimiser and schedule, which notices NaNs and leaves only whole checkpoints.

    `before_saving` is called first at every checkpoint, so that what belongs to the steps before it is on the disk.
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
    ) -> None:
        self.recipe = recipe
        self.before_saving = before_saving
        self.optimizer: torch.optim.Optimizer | None
        self.lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None
        self._losses: list[tuple[int, Tensor]] = []
        args = arguments(recipe, folder, device, validation_windows=len(validation))  # type: ignore[arg-type]
        super().__init__(model=model, args=args, train_dataset=train, eval_dataset=validation, data_collator=stacked)
        self.remove_callback(PrinterCallback)

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
        """Nothing reads the count, and it walks over every parameter at every step."""
        return 0

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append((self.state.global_step + 1, loss))
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Losses are looked at only here, since reading one makes a GPU wait; a checkpoint is always logged first."""
        self._require_finite(logs)
        super().log(logs, start_time)

    def _require_finite(self, logs: Mapping[str, float]) -> None:
        losses, self._losses = self._losses, []
        for step, loss in losses:
            if not torch.isfinite(loss):
                raise _diverged(f"the loss became {loss.item()}", step)
        norm = torch.as_tensor(logs.get("grad_norm", 0.0))
        if not torch.isfinite(norm):
            raise _diverged(f"the gradient's norm became {norm.item()}", self.state.global_step)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.before_saving()
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"{checkpoints.PREFIX}{self.state.global_step}"
        try:
            super()._save_checkpoint(*args, **kwargs)
            (checkpoint / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing here would read
            checkpoints.seal(checkpoint)
        except (OSError, RuntimeError, SafetensorError, InputError) as error:
            shutil.rmtree(checkpoint, ignore_errors=True)
            kept = checkpoints.listed(folder)
            last = f"{kept[-1].name} is whole" if kept else "there is none before it"
            raise InputError(f"cannot save {checkpoint} ({' '.join(str(error).split())}); {last}") from error
        checkpoints.prune(folder, self.recipe.keep)


def _diverged(what: str, step: int) -> TrainingDiverged:
    return TrainingDiverged(
        f"training diverged: {what} at step {step}; a lower optimizer.lr or a longer schedule.warmup may help", step
    )


def arguments(recipe: Recipe, folder: Path, device: str, validation_windows: int) -> TrainingArguments:
    """The recipe in `Trainer`'s words. Raises `InputError` where the machine cannot do it, or for several processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("training on several processes is not supported: start one process")
    batch = recipe.micro_batch or recipe.batch_size
    try:
        args = TrainingArguments(
            output_dir=str(folder),
            max_steps=recipe.steps,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=recipe.batch_size // batch,
            per_device_eval_batch_size=min(batch, validation_windows),
            max_grad_norm=recipe.optimizer.clip or 0.0,
            seed=recipe.seed,
            bf16=recipe.precision == "bf16",
            torch_compile=recipe.compile,
            use_cpu=device == "cpu",
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            dataloader_pin_memory=device != "cpu" and torch.cuda.is_available(),
            prediction_loss_only=True,
            logging_steps=recipe.log_every,
            logging_nan_inf_filter=False,
            eval_strategy="steps",
            eval_steps=recipe.eval_every,
            save_steps=recipe.save_every,
            report_to="none",
            disable_tqdm=True,
        )
    except ValueError as error:  # the recipe itself is valid: this is about hardware, such as bf16 on an old GPU
        raise InputError(f"this machine cannot train the recipe: {' '.join(str(error).split())}") from error
    args.mixed_precision = "bf16" if recipe.precision == "bf16" else "no"  # not what a launcher's environment says
    args._n_gpu = min(args.n_gpu, 1)  # several GPUs in one process would multiply the batch
    return args


def stacked(windows: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """A batch from windows of one length."""
    return {name: torch.stack([window[name] for window in windows]) for name in windows[0]}
