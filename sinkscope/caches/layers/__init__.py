"""Layers of caches: what transformers asks of one, over keys that are not all there."""

from sinkscope.caches.layers.hybrid import HybridSinkWindow, HybridSlotsLayer
from sinkscope.caches.layers.sink_window import Shown, SinkWindow
from sinkscope.caches.layers.slots import KeptSets, SlotsLayer

__all__ = ["HybridSinkWindow", "HybridSlotsLayer", "KeptSets", "Shown", "SinkWindow", "SlotsLayer"]
