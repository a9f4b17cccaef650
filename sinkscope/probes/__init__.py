"""Probes: observe a model while it runs, and measure what its attention does."""

from sinkscope.measurements import Comparison, Interval, Measurement, compare
from sinkscope.probes.measuring import measure
from sinkscope.probes.observers.bands import SpectralBands
from sinkscope.probes.observers.entropy import AttentionEntropy
from sinkscope.probes.observers.experts import ExpertPeaks
from sinkscope.probes.observers.geometry import HiddenSimilarity, HiddenVectors, MatrixEntropy, Mixing
from sinkscope.probes.observers.incoming import IncomingAttention
from sinkscope.probes.observers.kept import AttentionMaps, KeyVectors
from sinkscope.probes.observers.lengths import ReceivedByLength
from sinkscope.probes.observers.logits import MaximalLogits
from sinkscope.probes.observers.massive import MassiveActivations, TokenPeaks
from sinkscope.probes.observers.norms import HiddenNorms, QueryKeyAngles, QueryKeyValueNorms
from sinkscope.probes.observers.observer import Array, Hidden, LayerSums, Observer, Piece, divide
from sinkscope.probes.observers.outliers import OutlierStatistics
from sinkscope.probes.observers.outputs import HeadOutputs
from sinkscope.probes.observers.received import AttentionReceived, SlotReceived
from sinkscope.probes.observers.rows import whole, whole_rows
from sinkscope.probes.observers.spikes import SpikeDimensions
from sinkscope.probes.observers.update import SinkUpdate
from sinkscope.probes.observing import Observation, observe

__all__ = [
    "Array",
    "AttentionEntropy",
    "AttentionMaps",
    "AttentionReceived",
    "Comparison",
    "ExpertPeaks",
    "HeadOutputs",
    "Hidden",
    "HiddenNorms",
    "HiddenSimilarity",
    "HiddenVectors",
    "IncomingAttention",
    "Interval",
    "KeyVectors",
    "LayerSums",
    "MassiveActivations",
    "MatrixEntropy",
    "MaximalLogits",
    "Measurement",
    "Mixing",
    "Observation",
    "Observer",
    "OutlierStatistics",
    "Piece",
    "QueryKeyAngles",
    "QueryKeyValueNorms",
    "ReceivedByLength",
    "SinkUpdate",
    "SlotReceived",
    "SpectralBands",
    "SpikeDimensions",
    "TokenPeaks",
    "compare",
    "divide",
    "measure",
    "observe",
    "whole",
    "whole_rows",
]
