"""Layers that attend and keep a recurrent state beside it (Falcon-H1, Zamba)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from sinkscope.caches.layers.sink_window import SinkWindow


class HybridSinkWindow(SinkWindow, LinearAttentionAndFullAttentionLayer):
    """`SinkWindow` beside transformers' states, which have one size whatever was seen and are left to it."""

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        if kwargs:  # of a state; keys and values come by position
            LinearAttentionLayer.lazy_initialization(self, *args, **kwargs)
        else:
            SinkWindow.lazy_initialization(self, *args)

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        SinkWindow.reset(self)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        LinearAttentionLayer.reorder_cache(self, beam_idx)
        SinkWindow.reorder_cache(self, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if indices.dtype == torch.bool:
            indices = indices.nonzero()[:, 0]
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        states = [state for state in (*self.conv_states.values(), *self.recurrent_states.values()) if state is not None]
        if states:
            LinearAttentionLayer.reorder_cache(self, torch.arange(len(states[0])).repeat_interleave(repeats))
        SinkWindow.batch_repeat_interleave(self, repeats)
