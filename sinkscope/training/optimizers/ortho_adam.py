"""OrthoAdam: Adam in randomly rotated coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from sinkscope.training.optimizers.base import Decay, OptimizerPart, evaluated


class OrthoAdam(OptimizerPart):
    """AdamW with moments in a fixed random basis, in which no coordinate is special. Source: Kaul et al. 2024
    (2410.17174).

    g̃ = Q g;  m ← β₁ m + (1 − β₁) g̃;  v ← β₂ v + (1 − β₂) g̃²;  p ← p − lr · (Qᵀ (m̂ / (√v̂ + eps)) + weight_decay · p).

    The authors' code is not public. Q rotates every axis of a parameter by its own Haar matrix (a Kronecker product for
    matrices); an axis longer than `largest` is not rotated. `rotation_seed` draws the matrices, which are saved with
    the moments, so a resumed run continues in the same basis.
    """

    name: Literal["orthoadam"] = "orthoadam"
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    rotation_seed: NonNegativeInt = 0
    largest: PositiveInt = 4096

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        return RotatedAdam(
            self.groups(model), self.lr, self.betas, self.eps, haar_drawn(self.rotation_seed, self.largest)
        )

    def numbers(self, model: nn.Module) -> int:
        """Two moments, and a matrix for every rotated axis."""
        shapes = [p.shape for p in model.parameters() if p.requires_grad]
        matrices = sum(size**2 for shape in shapes for size in shape if is_rotated(size, self.largest))
        return 2 * self.trainable(model) + matrices


Rotations = list[Tensor | None]
Draw = Callable[[Tensor], Rotations]


class RotatedAdam(torch.optim.Optimizer):
    """Adam with decoupled decay on rotated gradients: one matrix per axis, None for an axis that is not rotated."""

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, rotations: Draw
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.rotations = rotations

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = evaluated(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["rotations"] = self.rotations(parameter)
        (one, two), lr = group["betas"], group["lr"]
        state["step"] += 1
        step = float(state["step"])
        # Both moments live in rotated coordinates; weights and their decay stay in the original ones.
        gradient = rotated(gradient, state["rotations"])
        state["first"].lerp_(gradient, 1 - one)
        state["second"].mul_(two).addcmul_(gradient, gradient, value=1 - two)
        # In place on the quotient, a new tensor: the moment itself is not touched.
        size = (state["second"] / (1 - two**step)).sqrt_().add_(group["eps"])
        update = rotated(state["first"] / (1 - one**step) / size, state["rotations"], back=True)
        parameter.mul_(1 - lr * group["weight_decay"]).sub_(update, alpha=lr)


def rotated(x: Float[Tensor, "..."], rotations: Rotations, back: bool = False) -> Float[Tensor, "..."]:
    """Every axis of x multiplied by its matrix, or with `back` by the transpose."""
    for axis, rotation in enumerate(rotations):
        if rotation is not None:
            matrix = rotation.T if back else rotation
            # tensordot puts the matrix's free axis first, wherever the axis that it replaces was.
            x = torch.tensordot(matrix, x, dims=([1], [axis])).movedim(0, axis)
    return x


def haar_drawn(seed: int, largest: int) -> Draw:
    """A function that draws a Haar-distributed orthogonal matrix for each axis of the parameters, in their order."""
    # On the CPU, so that a seed draws the same basis whatever the parameters' device.
    generator = torch.Generator().manual_seed(seed)

    def draw(parameter: Tensor) -> Rotations:
        return [_haar(size, generator).to(parameter) if is_rotated(size, largest) else None for size in parameter.shape]

    return draw


def is_rotated(size: int, largest: int) -> bool:
    """Whether an axis of this length is rotated."""
    return 1 < size <= largest


def _haar(size: int, generator: torch.Generator) -> Float[Tensor, "size size"]:
    """Uniform over the orthogonal group: the Q of a Gaussian matrix, signs fixed by R's diagonal (Mezzadri 2007)."""
    # float64, so that the cast to the parameter's dtype is all that separates QᵀQ from the identity.
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()
