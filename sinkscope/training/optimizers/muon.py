"""Muon on matrices, AdamW on the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from transformers.pytorch_utils import Conv1D

from sinkscope.model.attention import AddedHeads
from sinkscope.training.optimizers.base import Decay, OptimizerPart, evaluated


class Muon(OptimizerPart):
    """torch's Muon: momentum, orthogonalized by Newton-Schulz. Source: Jordan et al. 2024; Liu et al. 2025
    (2502.16982).

    It updates the matrices that map activations to activations (`maps`). AdamW with `betas` and `eps` updates all other
    parameters, as the authors advise: embeddings and the output layer, norms and biases, and also tables and vectors
    that are stored in a two-dimensional tensor, such as sink tokens, T5's position table, k* and v*, gates with a
    vector per head, λ's vectors, or Mamba's `A_log`. Nothing multiplies with those as a matrix, so orthogonalizing
    their rows has no meaning. Updates are scaled to AdamW's size ("match_rms_adamw"), so that one `lr` serves both.
    """

    name: Literal["muon"] = "muon"
    momentum: Decay = 0.95
    nesterov: bool = True
    ns_steps: PositiveInt = 5
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        map_ids = {id(parameter) for parameter in maps(model)}
        matrices, rest = [], []
        for group in self.groups(model):
            in_maps = [p for p in group["params"] if id(p) in map_ids]
            others = [p for p in group["params"] if id(p) not in map_ids]
            matrices += [{**group, "params": in_maps}] if in_maps else []
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
        """One momentum for each entry of the maps, two moments for each of the rest."""
        map_ids = {id(parameter) for parameter in maps(model)}
        trained = [p for p in model.parameters() if p.requires_grad]
        return sum((1 if id(p) in map_ids else 2) * p.numel() for p in trained)


class Combined(torch.optim.Optimizer):
    """Several optimizers that step as one and share their parameter groups."""

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
        # Loading gave the parts new group dicts.
        self._share()

    def _share(self) -> None:
        """Schedulers write rates into the groups, so these must be the parts' groups themselves."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def maps(model: nn.Module) -> list[nn.Parameter]:
    """A model's matrices that map activations to activations: of linear layers, and what operations list as `maps`.

    For a reparametrized layer, the matrix that learns. The output layer is not one of them: its gradients are as sparse
    as an embedding's.
    """
    excluded = _embeddings_and_output(model)
    # GPT-2's Conv1D is stored (in, out), which makes no difference: Newton-Schulz commutes with transposing, and the
    # factor on `lr` depends on the longer side alone.
    linear = [_learned(module) for module in model.modules() if isinstance(module, nn.Linear | AddedHeads | Conv1D)]
    listed = [getattr(module, name) for module in model.modules() for name in getattr(module, "maps", ())]
    return [parameter for parameter in [*linear, *listed] if parameter.ndim == 2 and id(parameter) not in excluded]


def left_to_adamw(model: nn.Module) -> list[nn.Parameter]:
    """A model's parameters except maps, embeddings and the output layer."""
    known = {id(parameter) for parameter in maps(model)} | _embeddings_and_output(model)
    return [parameter for parameter in model.parameters() if id(parameter) not in known]


def _learned(module: Any) -> nn.Parameter:
    parameter: nn.Parameter = (
        module.parametrizations.weight.original if is_parametrized(module, "weight") else module.weight
    )
    return parameter


def _embeddings_and_output(model: nn.Module) -> set[int]:
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return embeddings if head is None else embeddings | {id(head.weight)}
