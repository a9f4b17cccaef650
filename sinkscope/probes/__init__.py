"""Probes: observe a model while it runs, and measure what its attention does."""

from sinkscope.probes.angles import QueryKeyAngles
from sinkscope.probes.comparison import Comparison, compare
from sinkscope.probes.measurement import Measurement
from sinkscope.probes.measuring import measure
from sinkscope.probes.metrics import Interval
from sinkscope.probes.norms import HiddenNorms, QueryKeyValueNorms
from sinkscope.probes.observer import Array, LayerSums, Observer, Piece
from sinkscope.probes.observing import Observation, observe
from sinkscope.probes.received import AttentionReceived, SlotReceived

__all__ = [
    "Array",
    "AttentionReceived",
    "Comparison",
    "HiddenNorms",
    "Interval",
    "LayerSums",
    "Measurement",
    "Observation",
    "Observer",
    "Piece",
    "QueryKeyAngles",
    "QueryKeyValueNorms",
    "SlotReceived",
    "compare",
    "measure",
    "observe",
]
