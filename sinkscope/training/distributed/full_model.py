"""The full model of a `Trainer` in its main process, also if its weights are sharded (FSDP2)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from transformers import Trainer

from sinkscope.errors import InputError

REFUSED = "SinkCallback cannot read a model whose weights are sharded"


@dataclass(frozen=True)
class LocalModel:
    """A model that every process holds in full."""

    trainer: Trainer

    @contextmanager
    def model(self) -> Iterator[nn.Module | None]:
        """The current model in the main process; None in the others, which wait at their next step."""
        yield unwrapped(self.trainer) if self.trainer.is_world_process_zero() else None


@dataclass(frozen=True)
class GatheredModel:
    """A sharded model, whose weights are gathered in a copy in the main process's memory; `copy` is None elsewhere.

    The model in training is only read. The copy is on the trainer's device while it is used.
    """

    trainer: Trainer
    copy: nn.Module | None

    @contextmanager
    def model(self) -> Iterator[nn.Module | None]:
        """A copy of the current model in the main process, None in the others. Every process must call it."""
        # A collective call, so before the processes part ways.
        weights = full_state_dict(self.trainer)
        if self.copy is None:
            yield None
            return
        self.copy.load_state_dict(weights)
        try:
            yield self.copy.to(self.trainer.args.device)
        finally:
            self.copy.to("cpu")


def full_model(trainer: Trainer) -> LocalModel | GatheredModel:
    """The way to a trainer's full model during training.

    Raises `InputError` for weights that DeepSpeed or FSDP 1 shards, and for weights that are sharded already.
    """
    if trainer.is_deepspeed_enabled or (trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2):
        raise InputError(f"{REFUSED}: measure its checkpoints instead, or shard with FSDP2")
    if not trainer.is_fsdp_enabled:
        return LocalModel(trainer)
    from torch.distributed.tensor import DTensor

    model = unwrapped(trainer)
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise InputError(f"{REFUSED} already: add the callback before training begins")
    return GatheredModel(trainer, copy.deepcopy(model) if trainer.is_world_process_zero() else None)


def unwrapped(trainer: Trainer) -> nn.Module:
    """The trainer's model without the wrappers that training adds."""
    return cast(nn.Module, trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False))


def full_state_dict(trainer: Trainer) -> dict[str, Tensor]:
    """A trainer's full weights by name in the main process's memory; empty elsewhere. Every process must call it."""
    return cast(dict[str, Tensor], trainer.accelerator.get_state_dict(unwrapped(trainer)))
