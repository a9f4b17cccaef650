"""Muon on matrices, AdamW on the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import nn

from sinkscope.training.optimizers.base import Decay, OptimizerPart, evaluated


class Muon(OptimizerPart):
    """torch's Muon: momentum, orthogonalized by Newton-Schulz.

    It takes the matrices of the blocks; embeddings, the output layer and everything without two dimensions get AdamW
    with `betas` and `eps`, as its authors advise. Updates are scaled to AdamW's size ("match_rms_adamw"), so that one
    `lr` serves both. Source: Jordan et al. 2024; Liu et al. 2025 (2502.16982).
    """

    name: Literal["muon"] = "muon"
    momentum: Decay = 0.95
    nesterov: bool = True
    ns_steps: PositiveInt = 5
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        outside = _embeddings_and_output(model)
        matrices, rest = [], []
        for group in self.groups(model):
            inner = [p for p in group["params"] if _orthogonalized(p, outside)]
            others = [p for p in group["params"] if not _orthogonalized(p, outside)]
            matrices += [{**group, "params": inner}] if inner else []
            rest += [{**group, "params": others}] if others else []
        parts: list[torch.optim.Optimizer] = []
        if matrices:
            parts.append(
                torch.optim.Muon(
                    matrices,
                    lr=self.lr,
                    momentum=self.momentum,
                    nesterov=self.nesterov,
                    ns_steps=self.ns_steps,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if rest:
            parts.append(torch.optim.AdamW(rest, lr=self.lr, betas=self.betas, eps=self.eps, fused=True))
        return Combined(parts)

    def numbers(self, model: nn.Module) -> int:
        """One momentum of the blocks' matrices, two moments of the rest."""
        outside = _embeddings_and_output(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        return sum((1 if _orthogonalized(p, outside) else 2) * p.numel() for p in trained)


class Combined(torch.optim.Optimizer):
    """Several optimizers that step as one; the parameter groups are theirs."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = evaluated(closure)
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share()

    def _share(self) -> None:
        """Schedulers write rates into the groups: they must be the parts' own."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def _orthogonalized(parameter: nn.Parameter, outside: set[int]) -> bool:
    return parameter.ndim == 2 and id(parameter) not in outside


def _embeddings_and_output(model: nn.Module) -> set[int]:
    found = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return found if head is None else found | {id(head.weight)}
