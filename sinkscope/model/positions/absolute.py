"""Positions that are added to the embeddings."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.model.positions.scheme import Scheme

BASE = 10000.0


class LearnedTable(Scheme):
    """x_t + P[t] with a learned table P (length, width), drawn as every embedding: N(0, 2 / (5 · width)).

    Source: sail-sg/Attention-Sink, lit_gpt/model_pos.py, "learnable".
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)

    def embed(
        self, hidden: Float[Tensor, "batch position width"], positions: Int[Tensor, "#batch position"]
    ) -> Float[Tensor, "batch position width"]:
        """Raises `InputError` where a token stands beyond the table."""
        length = self.table.num_embeddings
        if not torch.compiler.is_compiling() and int(positions.max()) >= length:
            raise InputError(
                f"a token stands at position {int(positions.max())}, but learned positions end at {length - 1} "
                "(max_position_embeddings)"
            )
        return hidden + self.table(positions.clamp(min=0)).to(hidden.dtype)


class Sinusoidal(Scheme):
    """x_t + [sin(t·w_0) … sin(t·w_(d/2−1)) | cos(t·w_0) …] with w_i = 10000^(−2i/d), unscaled.

    The halves are concatenated, not interleaved as in Vaswani et al. 2017: so does the paper's code (sail-sg/
    Attention-Sink, lit_gpt/model_pos.py, "absolute"). Row 0 is [0 … 0 | 1 … 1]. We compute in fp32
    and round once, where that code adds in bf16. Raises `InputError` for an odd width. Source: Gu et al. 2025, Table 3.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        check_even_width(width)
        self.width = width

    def embed(
        self, hidden: Float[Tensor, "batch position width"], positions: Int[Tensor, "#batch position"]
    ) -> Float[Tensor, "batch position width"]:
        return hidden + sinusoids(positions, self.width).to(hidden.dtype)


def sinusoids(positions: Int[Tensor, "*batch position"], width: int) -> Float[Tensor, "*batch position width"]:
    """[sin | cos] of position · 10000^(−2i/width), fp32."""
    exponent = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angle = positions[..., None].float() * BASE**-exponent
    return torch.cat([angle.sin(), angle.cos()], -1)


def check_even_width(width: int) -> None:
    """Raises `InputError` where the halves of a sinusoidal embedding would differ."""
    if width % 2:
        raise InputError(f"sinusoidal positions need an even hidden_size, got {width}")
