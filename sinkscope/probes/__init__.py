"""Probes: observe a model while it runs, and measure what its attention does."""

from sinkscope.probes.measurements.comparison import Comparison, compare
from sinkscope.probes.measurements.measurement import Measurement
from sinkscope.probes.measuring import measure
from sinkscope.probes.metrics import Interval
from sinkscope.probes.observers.angles import QueryKeyAngles
from sinkscope.probes.observers.maps import AttentionMaps
from sinkscope.probes.observers.norms import HiddenNorms, QueryKeyValueNorms
from sinkscope.probes.observers.observer import Array, LayerSums, Observer, Piece
from sinkscope.probes.observers.received import AttentionReceived, SlotReceived
from sinkscope.probes.observing import Observation, observe

__all__ = [
    "Array",
    "AttentionMaps",
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
