"""Layers that attend and keep a recurrent state beside it (Falcon-H1, Zamba)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from sinkscope.caches.layers.sink_window import SinkWindow
from sinkscope.caches.layers.slots import KeptSets


class BesideStates:
    """Goes before a layer of kept keys: what is done to its rows is done to transformers' states as well.

    States have one size whatever was seen, and are left to transformers otherwise.
    """

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        if kwargs:  # of a state; keys and values come by position
            LinearAttentionLayer.lazy_initialization(self, *args, **kwargs)
        else:
            super().lazy_initialization(*args)  # type: ignore[misc]

    @property
    def uncroppable(self) -> str | None:
        return "has states that took the tokens in"

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        super().reset()  # type: ignore[misc]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        LinearAttentionLayer.reorder_cache(self, beam_idx)
        super().reorder_cache(beam_idx)  # type: ignore[misc]

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        known = [*self.conv_states.values(), *self.recurrent_states.values()]  # type: ignore[attr-defined]
        states = [state for state in known if state is not None]
        if states:
            rows = torch.arange(len(states[0])).repeat_interleave(repeats)
            LinearAttentionLayer.reorder_cache(self, rows)
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]


class HybridSinkWindow(BesideStates, SinkWindow, LinearAttentionAndFullAttentionLayer):
    """`SinkWindow` beside states."""


class HybridSlotsLayer(BesideStates, KeptSets, LinearAttentionAndFullAttentionLayer):
    """Kept sets beside states."""
