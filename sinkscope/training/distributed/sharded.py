"""A model whose weights are sharded over GPUs (FSDP2 through accelerate)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from sinkscope.errors import InputError
from sinkscope.training.distributed.full_model import full_state_dict
from sinkscope.training.recipe import Recipe
from sinkscope.training.trainer import RecipeTrainer, arguments


class ShardedTrainer(RecipeTrainer):
    """`RecipeTrainer` under FSDP2: every process holds a part of weights, gradients and optimizer state.

    Weights and reductions stay fp32 and "bf16" runs under autocast, as in one process, rather than under FSDP's own
    mixed precision, which would reduce gradients in bf16.

    Checkpoints are accelerate's full state dicts, gathered in the main process, whose memory (not its GPU's) must hold
    weights and optimizer state. So a run continues on another number of processes, and `model.safetensors` is in every
    checkpoint, which a survey of checkpoints reads; sharded state dicts would need no such memory and write no
    `model.safetensors`. The weights are on disk twice (`pytorch_model_fsdp.bin`), and the optimizer's state is named by
    parameters (`optimizer.bin`), so a sharded run continues sharded and an unsharded one unsharded.

    Raises `InputError` for an optimizer that needs whole matrices (Muon, OrthoAdam: on a shard they would silently
    compute something else) and for tied or scalar parameters.
    """

    def __init__(self, recipe: Recipe, *, model: nn.Module, **more: Any) -> None:
        check_shardable(recipe, model)
        super().__init__(recipe, model=model, **more)
        # Trainer has made the accelerator by now and shards the model only in train(). An empty policy casts nothing.
        self.accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy()

    def arguments(self, folder: Path, device: str, validation_windows: int) -> TrainingArguments:
        fsdp = {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "FULL_STATE_DICT"}}
        return arguments(self.recipe, folder, device, validation_windows, self.processes.world, **fsdp)

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        """Accelerate leaves a sharded model's forward pass to FSDP's mixed precision."""
        enabled = self.recipe.precision == "bf16"
        return torch.autocast(self.args.device.type, torch.bfloat16, enabled=enabled, cache_enabled=cache_enabled)

    def full_weights(self) -> dict[str, Tensor] | None:
        return full_state_dict(self)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Without `together` around the writing, in which all processes gather.

        If the main process cannot write, it ends with one line, and its launcher ends the others.
        """
        self.processes.together(self.before_saving)
        self._write_checkpoint(*args, **kwargs)


def check_shardable(recipe: Recipe, model: nn.Module) -> None:
    """Raises `InputError` if sharding would fail or change what is computed."""
    if not recipe.optimizer.elementwise:
        raise InputError(
            f"optimizer '{recipe.optimizer.name}' needs whole matrices, which no process has under FSDP: "
            "use parallel 'ddp', or adamw, adam, sgd or rmsprop"
        )
    # A tied weight has two names and is one parameter.
    if len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False))):
        raise InputError("a model with tied weights cannot be sharded: use parallel 'ddp'")
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise InputError(f"parameter '{scalars[0]}' is a single number, which cannot be sharded: use parallel 'ddp'")
