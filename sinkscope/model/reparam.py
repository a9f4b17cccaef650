"""Sigma-reparametrization: every matrix of the blocks with a spectral norm that is learned (Zhai et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from transformers import initialization as init

from sinkscope.attention import Operation
from sinkscope.attention.scores import wide
from sinkscope.model.attention import AddedHeads
from sinkscope.model.feedforward import starting_std


class Sigma(nn.Module):
    """Ŵ = γ / σ · W with σ = uᵀ W v, a power iteration's estimate of the largest singular value.

    γ, one number, is learned and starts at the σ of the starting W, so that Ŵ = W then. u (out), v (in) are buffers:
    they start as W's first singular vectors and take a step of power iteration, v ← Wᵀu / ‖·‖, u ← Wv / ‖·‖, at the
    beginning of a training step (`iterate`); no gradient flows into them. σ and the iteration are computed in fp32 at
    least, also under autocast. `std` is that of the starting W. Source: Zhai et al. 2023, eq. 3;
    apple/ml-sigma-reparam, vision/layers.py, which in evaluation takes a step as well, for that pass alone; here
    evaluation takes none. Its std is 0.02 everywhere. γ is a parameter without dimensions: optimizers that exempt norm
    gains from decay exempt it as well, others do not.
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Float[Tensor, "out in"], std: float) -> None:
        super().__init__()
        self.std = std
        self.gamma = nn.Parameter(weight.new_empty(()))
        self.register_buffer("u", weight.new_empty(weight.shape[0]))
        self.register_buffer("v", weight.new_empty(weight.shape[1]))

    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        """Ŵ. u and v are copied, so that an iteration between two passes leaves the first one's gradient intact."""
        with torch.autocast(weight.device.type, enabled=False):
            sigma = wide(self.u.clone()) @ wide(weight) @ wide(self.v.clone())
            return (wide(self.gamma) / sigma).to(weight.dtype) * weight

    @torch.no_grad()
    def start(self, weight: Float[Tensor, "out in"]) -> None:
        """W ~ N(0, std²), its singular vectors, and γ = σ; what was loaded stays (transformers guards `init`)."""
        init.normal_(weight, mean=0.0, std=self.std)
        if weight.device.type == "meta":
            return
        left, values, right = torch.linalg.svd(wide(weight), full_matrices=False)
        init.copy_(self.u, left[:, 0])
        init.copy_(self.v, right[0])
        init.copy_(self.gamma, values[0])

    @torch.no_grad()
    def iterate(self, weight: Float[Tensor, "out in"]) -> None:
        """One step of power iteration."""
        with torch.autocast(weight.device.type, enabled=False):
            # v first: u is computed from the new v, which makes this one step of power iteration on WWᵀ.
            self.v.copy_(F.normalize(wide(weight).T @ wide(self.u), dim=0))
            self.u.copy_(F.normalize(wide(weight) @ wide(self.v), dim=0))


def reparametrize(block: nn.Module, layers: int) -> None:
    """Put γ / σ before every matrix of a block: of attention's projections, the feed-forward, and a Mamba layer.

    What the attention operation itself learns stays as it is, and so do embeddings and the head, which are no part of a
    block. `module.weight` is Ŵ from then on, whoever reads it; W is `module.parametrizations.weight.original`.
    `layers`: of the whole model, on which the starting values depend.
    """
    for module in list(_matrices(block)):
        sigma = Sigma(module.weight, starting_std(module, layers))  # type: ignore[arg-type]
        parametrize.register_parametrization(module, "weight", sigma, unsafe=True)  # no trial run, for the meta device


def start_sigma(parametrizations: parametrize.ParametrizationList) -> None:
    """The starting values of one reparametrized matrix."""
    sigma = parametrizations[0]
    if isinstance(sigma, Sigma):
        sigma.start(parametrizations.original)


def iterate(model: nn.Module) -> None:
    """One step of power iteration for every reparametrized matrix: what a training step begins with.

    Once a forward pass and not in the layers themselves, which gradient checkpointing runs twice; a lab model does it
    in every training pass but those in `held`.
    """
    for sigma, weight in reparametrized(model):
        sigma.iterate(weight)


@contextmanager
def held(model: nn.Module) -> Iterator[None]:
    """Leave u and v as they are: for the further passes of a step whose batch is run in parts.

    The passes of a step then have one σ, that of a single pass over the whole batch.
    """
    iterating = [module for module in model.modules() if getattr(module, "iterates", False)]
    for module in iterating:
        module.iterates = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in iterating:
            module.iterates = True  # type: ignore[assignment]


def reparametrized(model: nn.Module) -> Iterator[tuple[Sigma, Tensor]]:
    """Every reparametrization in the model with the W it acts on."""
    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList) and isinstance(module[0], Sigma):
            yield module[0], module.original


def _matrices(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Linear | AddedHeads):
        yield module
    elif not isinstance(module, Operation):
        for child in module.children():
            yield from _matrices(child)
