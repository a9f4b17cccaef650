"""Changes of the inputs of linear maps that the weights undo: the function stays, and is easier to quantize."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.grids import Blocks, Order
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear.experts import Routing
from sinkscope.quantization.linear.maps import LinearMap
from sinkscope.quantization.linear.uses import Uses


@dataclass(frozen=True)
class Transform(Intervention):
    """An intervention that leaves the full-precision function unchanged: for `QuantizeLinear(transform=...)`.

    It is applied before both roundings. Combined with a quantizer through `All`, it would follow the rounding of the
    weights, which is refused. Several transforms are `Transforms`.
    """


@dataclass(frozen=True)
class Transforms(Transform):
    """Several transforms; the first of them changes x first.

    QuaRot (Ashkboos et al. 2024), for example: `Transforms((RotateResidual.of(model, inputs),
    RotateInputs(["down"])))`. A transform that acts on x through a norm must precede those that act after the norm.
    Control: that of each part.
    """

    parts: Sequence[Transform]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        for transform in self.parts:
            transform.attach(model, stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Intervention:
        return Transforms(tuple(transform.control(generator, model, inputs) for transform in self.parts))  # type: ignore[misc]

    def describe(self) -> dict[str, Any]:
        return {"name": "Transforms", "parts": [transform.describe() for transform in self.parts]}


def check_unrounded(maps: Iterable[LinearMap]) -> None:
    """Raises `InputError` if the weight of a map is already quantized."""
    for one in maps:
        if one.rounded:
            raise InputError(
                f"the weight of '{one.path}' is already quantized: give a transform to the quantizer "
                "(QuantizeLinear(transform=...)), and each map to one quantizer (skip=...)"
            )


def check_unedited(maps: Iterable[LinearMap], what: str) -> None:
    """Raises `InputError` if the input of a map is already changed after the norm that `what` changes."""
    for one in maps:
        if one.edited:
            raise InputError(
                f"the input of '{one.path}' is already changed, and {what} acts before that change: give both to "
                "Transforms((...)) in this order, and to the quantizer as its transform"
            )


@dataclass(frozen=True, eq=False)
class Change:
    """x → (x / s) Q and W → (W s) Q with an orthogonal Q, so that W x is unchanged.

    `scale`: s, one number per input, None for 1; `turns`: the factors of Q in order.
    """

    scale: Float[Tensor, "in"] | None = None
    turns: Sequence[Blocks | Order] = ()

    def of_input(self, x: Float[Tensor, "*row in"]) -> Float[Tensor, "*row in"]:
        """The changed input."""
        return self._turned(x if self.scale is None else x / self.scale.to(x))

    def of_weight(self, weight: Float[Tensor, "*out in"]) -> Float[Tensor, "*out in"]:
        """The weight that undoes the change."""
        return self._turned(weight if self.scale is None else weight * self.scale.to(weight))

    def _turned(self, rows: Tensor) -> Tensor:
        # The same Q on both sides: (x / s) Q ((W s) Q)ᵀ = (x / s) Q Qᵀ (W s)ᵀ = x Wᵀ.
        for turn in self.turns:
            rows = turn(rows)
        return rows


@dataclass(frozen=True)
class InputTransform(Transform):
    """A transform of the inputs of maps in place. To write one: a frozen dataclass with `changes`."""

    @abstractmethod
    def changes(self, model: nn.Module) -> Mapping[LinearMap, Change]:
        """The change of each map."""

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        changes = self.changes(model)
        check_unrounded(changes)
        uses = Uses.of(model, stack)
        for one, change in changes.items():
            change_map(one, change, uses, stack)


def change_map(one: LinearMap, change: Change, uses: Uses, stack: ExitStack) -> None:
    """Change the input of a map and its weight until `stack` closes."""

    def edit(x: Tensor, routing: Routing | None) -> Tensor:
        uses.used(one)
        return change.of_input(x)

    uses.require(one)
    one.edit_input(edit, stack)
    one.replace(change.of_weight(one.weight), stack)
