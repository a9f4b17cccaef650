"""The two linear maps of stacked experts, run one after the other, so that the input of the second is visible."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.errors import UnsupportedModelError

FIRST, SECOND = ("gate_up_proj", "up_proj"), "down_proj"
DECLARED = ("has_gate", "has_bias", "is_transposed")  # attributes of transformers' expert layers


@dataclass(frozen=True, eq=False)
class Routing:
    """The pairs of a token and one of its experts in a call over `tokens` tokens.

    `paired`: whether the rows of x are these pairs; otherwise they are the tokens.
    """

    token: Int[Tensor, "pair"]
    expert: Int[Tensor, "pair"]
    tokens: int
    paired: bool


Edit = Callable[[Tensor, Routing | None], Tensor]


def maps_of(module: nn.Module) -> tuple[str, ...]:
    """The names of the stacked weights, first map first. Raises `UnsupportedModelError` unless there are two."""
    names = [name for name, parameter in module.named_parameters(recurse=False) if parameter.ndim == 3]
    first = [name for name in names if name in FIRST]
    if len(first) != 1 or set(names) != {*first, SECOND}:
        raise UnsupportedModelError(
            f"{type(module).__name__}: stacked experts of {', '.join(names)} are not understood"
        )
    return first[0], SECOND


def is_transposed(module: nn.Module, path: str) -> bool:
    """Whether stacked weights are (expert, in, out): as the module declares, or as the shapes of its two maps imply."""
    declared = getattr(module, "is_transposed", None)
    if isinstance(declared, bool):
        return declared
    first, second = (getattr(module, name).shape for name in maps_of(module))
    plain, turned = first[2] == second[1], first[1] == second[2]
    if plain == turned:
        raise UnsupportedModelError(
            f"'{path}': {type(module).__name__} does not declare which axis of its stacked weights is the input, "
            f"and {tuple(first)} and {tuple(second)} do not imply it; name it in skip to leave it in full precision"
        )
    return turned


def edit_experts(module: nn.Module, path: str, parameter: str, edit: Edit, stack: ExitStack) -> None:
    """Let `edit` change the input of one of the two maps until `stack` closes.

    Args:
        module: The expert layer.
        path: Its name, for messages.
        parameter: Name of the map's stacked weights.
        edit: Called with the map's input and its routing; returns the input to use.
        stack: Undoes the edit.

    Raises `UnsupportedModelError` for experts with custom code, whose second map's input is not visible from outside.
    """
    if any(not hasattr(module, name) for name in DECLARED) or getattr(module, "_is_expert_parallel", False):
        raise UnsupportedModelError(
            f"'{path}': {type(module).__name__} computes both maps of its experts in custom code, so the input of "
            "the second cannot be quantized; name it in skip, or quantize weights alone (activations=None)"
        )
    forward: Any = vars(module).get("forward")
    if not isinstance(forward, _InTwo):
        forward = _InTwo(module, forward)
        # On the instance: `__call__` looks up `self.forward`, so the module's hooks still run.
        vars(module)["forward"] = forward
    forward.add(parameter, edit, stack)


def edits_experts(module: nn.Module, parameter: str) -> bool:
    """Whether an edit of the input of one of the two maps is active."""
    forward: Any = vars(module).get("forward")
    return isinstance(forward, _InTwo) and bool(forward.edits.get(parameter))


class _InTwo:
    """The forward of an expert layer: each map over all pairs of a token and one of its experts."""

    def __init__(self, module: nn.Module, before: Any) -> None:
        self.module: Any = module
        self.before = before  # a forward set on the instance; None if it used that of its class
        self.edits: dict[str, list[Edit]] = {}

    def add(self, parameter: str, edit: Edit, stack: ExitStack) -> None:
        """Let `edit` change the input of one map, after the edits that are already active, until `stack` closes."""
        self.edits.setdefault(parameter, []).append(edit)
        stack.callback(self._drop, parameter, edit)

    def _drop(self, parameter: str, edit: Edit) -> None:
        self.edits[parameter].remove(edit)
        if not any(self.edits.values()):
            del vars(self.module)["forward"]
            vars(self.module).update({} if self.before is None else {"forward": self.before})

    def __call__(
        self,
        hidden_states: Float[Tensor, "token width"],
        top_k_index: Int[Tensor, "token choice"],
        top_k_weights: Float[Tensor, "token choice"],
    ) -> Float[Tensor, "token width"]:
        experts = self.module
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        token, choice = (top_k_index < experts.num_experts).nonzero(as_tuple=True)  # larger indices mark no expert
        expert = top_k_index[token, choice]
        first, second = maps_of(experts)
        # Edited once per token, and only then repeated for the token's experts.
        entered = self._edited(first, flat, Routing(token, expert, len(flat), paired=False))[token]
        inner = self._map(first, entered, expert)
        inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
        out = self._map(second, self._edited(second, inner, Routing(token, expert, len(flat), paired=True)), expert)
        out = experts.post_expert_norm(out) if getattr(experts, "has_post_expert_norm", False) else out
        weighted = out * top_k_weights[token, choice, None]
        mixed = torch.zeros_like(flat).index_add(0, token, weighted.to(flat.dtype))
        return mixed.reshape(hidden_states.shape)

    def _edited(self, parameter: str, x: Tensor, routing: Routing) -> Tensor:
        for edit in self.edits.get(parameter, []):
            x = edit(x, routing)
        return x

    def _map(self, parameter: str, x: Float[Tensor, "pair in"], expert: Tensor) -> Float[Tensor, "pair out"]:
        weights = getattr(self.module, parameter)
        weights = weights if is_transposed(self.module, parameter) else weights.mT
        y = x.new_empty(len(x), weights.shape[-1])  # each pair has one expert, so all rows are written
        for number in expert.unique().tolist():
            y = y.index_copy(0, (rows := (expert == number).nonzero()[:, 0]), x[rows] @ weights[number])
        return y + getattr(self.module, f"{parameter}_bias")[expert] if self.module.has_bias else y
