"""Layers that combine attention with a recurrent state (Falcon-H1, Zamba)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from sinkscope.caches.layers.sink_window import SinkWindow
from sinkscope.caches.layers.slots import KeptSets


class BesideStates:
    """Mixin before a layer of kept keys: applies operations on its rows to transformers' recurrent states too.

    States have a fixed size and are otherwise left to transformers.
    """

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        if kwargs:  # a state is initialized by keyword, keys and values by position
            LinearAttentionLayer.lazy_initialization(self, *args, **kwargs)
        else:
            super().lazy_initialization(*args)  # type: ignore[misc]

    @property
    def uncroppable(self) -> str | None:
        return "has recurrent states that depend on the tokens"

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        super().reset()  # type: ignore[misc]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        LinearAttentionLayer.reorder_cache(self, beam_idx)
        super().reorder_cache(beam_idx)  # type: ignore[misc]

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        states = [*self.conv_states.values(), *self.recurrent_states.values()]  # type: ignore[attr-defined]
        states = [state for state in states if state is not None]
        if states:
            rows = torch.arange(len(states[0])).repeat_interleave(repeats)
            LinearAttentionLayer.reorder_cache(self, rows)
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]


class HybridSinkWindow(BesideStates, SinkWindow, LinearAttentionAndFullAttentionLayer):
    """`SinkWindow` with recurrent states."""


class HybridSlotsLayer(BesideStates, KeptSets, LinearAttentionAndFullAttentionLayer):
    """Kept sets with recurrent states."""
