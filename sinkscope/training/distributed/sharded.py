"""A model whose weights are sharded over GPUs (FSDP2), and checkpoints that do not show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from sinkscope.errors import InputError
from sinkscope.training.distributed.full_model import full_state_dict, unwrapped
from sinkscope.training.recipe import Recipe
from sinkscope.training.trainer import RecipeTrainer, arguments

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_MAIN = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class ShardedTrainer(RecipeTrainer):
    """`RecipeTrainer` under FSDP2: every process holds a part of weights, gradients and optimizer state.

    Weights and reductions stay fp32 and "bf16" runs under autocast, as in one process, rather than under FSDP's own
    mixed precision, which would reduce gradients in bf16. Checkpoints are gathered in the main process and are the
    files of one process (`model.safetensors`, `optimizer.pt`), so that a run may go on sharded or not; its memory (not
    its GPU's) must hold weights and optimizer state. Raises `InputError` for an optimizer that needs whole matrices
    (Muon, OrthoAdam: on a shard they would silently compute something else) and for tied or scalar parameters.
    """

    def __init__(self, recipe: Recipe, *, model: nn.Module, **more: Any) -> None:
        check_shardable(recipe, model)
        self._gathered = CheckpointState()
        super().__init__(recipe, model=model, **more)
        self.accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy()

    def arguments(self, folder: Path, device: str, validation_windows: int) -> TrainingArguments:
        fsdp = {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "FULL_STATE_DICT"}}
        return arguments(self.recipe, folder, device, validation_windows, self.processes.world, **fsdp)

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        """Accelerate leaves a sharded model's forward to FSDP's mixed precision."""
        on = self.recipe.precision == "bf16"
        return torch.autocast(self.args.device.type, torch.bfloat16, enabled=on, cache_enabled=cache_enabled)

    def full_weights(self) -> dict[str, Tensor] | None:
        return full_state_dict(unwrapped(self))

    def gather(self) -> None:
        self._gathered = CheckpointState(self.full_weights() or {}, self._full_optimizer())

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if self.processes.main:
            self._save(output_dir, state_dict=self._gathered.weights)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.processes.main:
            torch.save(self._gathered.optimizer, Path(output_dir) / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")  # type: ignore[union-attr]
        self._gathered = CheckpointState()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        weights: dict[str, Tensor] = {}
        if self.processes.main:
            for file in sorted(Path(resume_from_checkpoint).glob("*.safetensors")):
                weights |= load_file(file)
        set_model_state_dict(unwrapped(self), cast(Any, weights), options=FROM_MAIN)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state: dict[str, Any] = {}
        if self.processes.main:
            stored = torch.load(Path(checkpoint) / "optimizer.pt", map_location="cpu", weights_only=True)
            state = by_name(stored, self._names())
        set_optimizer_state_dict(unwrapped(self), self._optimizer(), state, options=FROM_MAIN)
        stored = torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True)
        self.lr_scheduler.load_state_dict(stored)  # type: ignore[union-attr]

    def _full_optimizer(self) -> dict[str, Any]:
        state = get_optimizer_state_dict(unwrapped(self), self._optimizer(), options=FULL)
        return by_number(state) if self.processes.main else {}

    def _optimizer(self) -> torch.optim.Optimizer:
        """The optimizer itself, which accelerate has wrapped."""
        return self.optimizer.optimizer  # type: ignore[union-attr]

    def _names(self) -> list[str]:
        """The parameters' names in the order of the optimizer's groups."""
        names = {id(parameter): name for name, parameter in unwrapped(self).named_parameters()}
        return [names[id(parameter)] for group in self._optimizer().param_groups for parameter in group["params"]]


@dataclass(frozen=True)
class CheckpointState:
    """What one checkpoint holds, in full, in the main process."""

    weights: Mapping[str, Tensor] | None = None
    optimizer: Mapping[str, Any] | None = None


def check_shardable(recipe: Recipe, model: nn.Module) -> None:
    """Raises `InputError` where sharding would fail or change what is computed."""
    if not recipe.optimizer.elementwise:
        raise InputError(
            f"optimizer '{recipe.optimizer.name}' needs whole matrices, which no process has under FSDP: "
            "use parallel 'ddp', or adamw, adam, sgd or rmsprop"
        )
    if len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False))):
        raise InputError("a model with tied weights cannot be sharded: use parallel 'ddp'")
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise InputError(f"parameter '{scalars[0]}' is a single number, which cannot be sharded: use parallel 'ddp'")


def by_number(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's state under the parameters' numbers, as torch's own `state_dict` has it, from one under names."""
    numbers: dict[str, int] = {}
    for group in state["param_groups"]:
        for name in group["params"]:
            numbers[name] = len(numbers)
    return _renamed(state, numbers)


def by_name(state: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The inverse: an optimizer's own `state_dict` under the parameters' names."""
    return _renamed(state, dict(enumerate(names)))


def _renamed(state: Mapping[str, Any], new: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "state": {new[key]: values for key, values in state["state"].items()},
        "param_groups": [{**group, "params": [new[key] for key in group["params"]]} for group in state["param_groups"]],
    }
