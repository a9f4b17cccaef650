"""The feed-forward of a block (Gu et al. 2025, Table 11; Guo et al. 2024a)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.model.config import LabConfig


@dataclass(frozen=True)
class FeedForwardKind:
    """An activation φ, and whether it gates: W_down(φ(W_gate x) · W_up x), else W_down φ(W_up x)."""

    activation: Callable[[Tensor], Tensor]
    gated: bool


KINDS = {
    "swiglu": FeedForwardKind(F.silu, gated=True),
    "geglu": FeedForwardKind(F.gelu, gated=True),
    "reglu": FeedForwardKind(F.relu, gated=True),
    "swish": FeedForwardKind(F.silu, gated=False),
    "gelu": FeedForwardKind(F.gelu, gated=False),
    "relu": FeedForwardKind(F.relu, gated=False),
    "relu_squared": FeedForwardKind(lambda x: F.relu(x).square(), gated=False),
    "linear": FeedForwardKind(lambda x: x, gated=False),
}


class DownProjection(nn.Linear):
    """The last map of a SwiGLU; a separate class because it starts smaller.

    transformers calls `_init_weights` only for modules with parameters, so its parent cannot initialize it.
    """


class FeedForward(nn.Module):
    """W_down(φ(W_gate x) · W_up x) of a gated kind, W_down φ(W_up x) of the others; no biases. Source: Shazeer 2020.

    φ is silu (swiglu, swish), the exact gelu (geglu, gelu), relu (reglu, relu), relu² (relu_squared; So et al. 2021,
    2109.08668) or nothing (linear). The inner width is
    `config.intermediate_size`, for every kind as in the paper, whose ungated runs therefore have a third fewer
    parameters here; with `ffn_match_parameters` the ungated kinds are 3/2 as wide, rounded down.
    """

    def __init__(self, config: LabConfig) -> None:
        super().__init__()
        self.kind = KINDS[config.ffn]
        width, inner = config.hidden_size, config.intermediate_size
        if self.kind.gated:
            self.gate_proj = nn.Linear(width, inner, bias=False)
        elif config.ffn_match_parameters:
            inner = inner * 3 // 2
        self.up_proj = nn.Linear(width, inner, bias=False)
        last = DownProjection if config.ffn == "swiglu" else nn.Linear  # the paper's rule is for SwiGLU alone
        self.down_proj = last(inner, width, bias=False)

    def forward(self, x: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch position width"]:
        if self.kind.gated:
            return self.down_proj(self.kind.activation(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(self.kind.activation(self.up_proj(x)))


class NoFeedForward(nn.Module):
    """f = 0: the block is its mixer alone. Source: the variants of Guo et al. 2024a without a feed-forward."""

    def forward(self, x: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch position width"]:
        return torch.zeros_like(x)


def starting_std(module: nn.Module, layers: int) -> float:
    """sqrt(2 / (5 · fan_in)) for matrices, tables and convolutions; 1 / (L · sqrt(fan_in)) for a SwiGLU's output.

    fan_in: how many numbers a row of the weight takes in; head_dim for an output map that all heads share. Source:
    sail-sg/Attention-Sink, lit_gpt/model.py.
    """
    fan_in = module.weight[0].numel()  # type: ignore[index]
    return fan_in**-0.5 / layers if isinstance(module, DownProjection) else (2 / (5 * fan_in)) ** 0.5
