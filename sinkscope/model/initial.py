"""How wide the starting values of a matrix spread."""

from __future__ import annotations

from torch import nn

from sinkscope.model.feedforward import DownProjection


def starting_std(module: nn.Module, layers: int) -> float:
    """sqrt(2 / (5 · fan_in)) for matrices, tables and convolutions; 1 / (L · sqrt(fan_in)) for a SwiGLU's output.

    fan_in: how many numbers a row of the weight takes in; head_dim for an output map that all heads share. Source:
    sail-sg/Attention-Sink, lit_gpt/model.py.
    """
    fan_in = module.weight[0].numel()  # type: ignore[index]
    return fan_in**-0.5 / layers if isinstance(module, DownProjection) else (2 / (5 * fan_in)) ** 0.5
