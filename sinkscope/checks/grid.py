"""Whether a model's weights lie on a 4-bit grid already, so that nothing about rounding them means anything."""

from __future__ import annotations

import torch
from torch import nn

from sinkscope.quantization import linear_maps

BLOCK = 32  # weights that share a scale, in GGUF's 4-bit types; those of larger groups contain such blocks
LEVELS = 16
LOOKED_AT = 64  # blocks of a map


def on_four_bits(model: nn.Module) -> float:
    """The share of linear maps of which every block of 32 weights that was looked at has at most 16 values.

    A block of 32 weights of a trained model in full precision has 32 values, in bfloat16 nearly as many.
    """
    maps = [one.weight.detach() for one in linear_maps(model).values() if one.weight.ndim == 2]
    maps = [weight for weight in maps if weight.shape[1] % BLOCK == 0]
    return sum(map(_on_grid, maps)) / max(1, len(maps))


def weights_as_read(model: nn.Module) -> str:
    """ "weights on a 4-bit grid" where nearly all are, else the precision; empty where there are no linear maps."""
    try:
        share = on_four_bits(model)
    except ValueError:
        return ""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return f"weights on a 4-bit grid, read in {dtype}" if share > 0.9 else f"weights in {dtype}"


def _on_grid(weight: torch.Tensor) -> bool:
    blocks = weight.reshape(-1, BLOCK)
    chosen = blocks[torch.linspace(0, len(blocks) - 1, min(LOOKED_AT, len(blocks)), device=weight.device).long()]
    ordered = chosen.float().sort(-1).values
    values = 1 + (ordered.diff(dim=-1) != 0).sum(-1)
    return bool((values <= LEVELS).all())
