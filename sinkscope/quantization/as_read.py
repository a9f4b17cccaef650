"""How weights were stored before they were read: on a grid already, results about rounding them mean nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from sinkscope.grids import Grid
from sinkscope.hooks import unwrapped
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear import OutlyingColumns, QuantizeLinear, linear_maps

BLOCK = 32  # weights that share a scale in GGUF's 4-bit types; types with larger groups divide into such blocks
LEVELS = 16
SAMPLED = 64  # blocks of a map
MOST = 0.5  # of the maps: with more on the grid, a model's weights are called rounded; files mix types
NAMED = 0.01  # of the weights: tensor types of a file with fewer are not named
UNROUNDED = ("F64", "F32", "F16", "BF16")  # GGUF's types of floating-point numbers


@dataclass(frozen=True)
class WeightsAsRead:
    """How the weights of a model's linear maps were stored.

    Args:
        says: In words: "weights in bfloat16", "weights in GGUF Q4_K and Q6_K, read in float32".
        rounded: Whether they lie on a grid of few bits.
    """

    says: str
    rounded: bool


def weights_as_read(model: nn.Module) -> WeightsAsRead:
    """By the tensor types of the GGUF file that the model comes from; without one, by the weights' values."""
    model = unwrapped(model)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    types = getattr(model, "gguf", {}).get("types", {})
    if total := sum(types.values()):
        names = [name for name, count in types.items() if count > NAMED * total]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        rounded = sum(count for name, count in types.items() if name not in UNROUNDED) > total / 2
        return WeightsAsRead(f"weights in GGUF {listed}, read in {dtype}", rounded)
    try:
        on_grid = on_four_bits(model) > MOST
    except ValueError:  # no linear maps, or weights that are no numbers in memory
        return WeightsAsRead("", False)
    return WeightsAsRead(f"weights on a 4-bit grid, read in {dtype}" if on_grid else f"weights in {dtype}", on_grid)


def on_four_bits(model: nn.Module) -> float:
    """The share of linear maps on a 4-bit grid: every sampled block of 32 weights has at most 16 distinct values.

    In a trained model, such a block has 32 distinct values in full precision, and nearly as many in bfloat16.
    """
    weights = [linear.weight.detach() for linear in linear_maps(model).values() if linear.weight.ndim == 2]
    weights = [weight for weight in weights if weight.shape[1] % BLOCK == 0]
    return sum(map(_on_grid, weights)) / max(1, len(weights))


def rounds_weights(quantizer: Intervention | None) -> bool:
    """Whether an intervention rounds the weights of linear maps."""
    if isinstance(quantizer, QuantizeLinear):
        return not (isinstance(quantizer.weights, Grid) and quantizer.weights.exact)
    return isinstance(quantizer, OutlyingColumns)


def _on_grid(weight: torch.Tensor) -> bool:
    blocks = weight.reshape(-1, BLOCK)
    sample = blocks[torch.linspace(0, len(blocks) - 1, min(SAMPLED, len(blocks)), device=weight.device).long()]
    ordered = sample.float().sort(-1).values
    distinct = 1 + (ordered.diff(dim=-1) != 0).sum(-1)
    return bool((distinct <= LEVELS).all())
