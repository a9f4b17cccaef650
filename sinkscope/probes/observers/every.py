"""The observers that `measure` uses: by default, and with observers="all"."""

from __future__ import annotations

from sinkscope.probes.observers.bands import SpectralBands
from sinkscope.probes.observers.entropy import AttentionEntropy
from sinkscope.probes.observers.experts import ExpertPeaks
from sinkscope.probes.observers.geometry import HiddenSimilarity, HiddenVectors, MatrixEntropy, Mixing
from sinkscope.probes.observers.incoming import IncomingAttention
from sinkscope.probes.observers.kept import KeyVectors
from sinkscope.probes.observers.lengths import ReceivedByLength
from sinkscope.probes.observers.logits import MaximalLogits
from sinkscope.probes.observers.massive import MassiveActivations, TokenPeaks
from sinkscope.probes.observers.norms import HiddenNorms, QueryKeyAngles, QueryKeyValueNorms
from sinkscope.probes.observers.observer import Observer
from sinkscope.probes.observers.outliers import OutlierStatistics
from sinkscope.probes.observers.outputs import HeadOutputs
from sinkscope.probes.observers.received import AttentionReceived, SlotReceived
from sinkscope.probes.observers.spikes import SpikeDimensions
from sinkscope.probes.observers.update import SinkUpdate

DEFAULT: tuple[Observer, ...] = (AttentionReceived(), HiddenNorms(), QueryKeyValueNorms())

# Not among them: AttentionMaps, whose result grows with the square of the tokens.
EVERY: tuple[Observer, ...] = (
    *DEFAULT,
    SlotReceived(),
    ReceivedByLength(),
    IncomingAttention(),
    AttentionEntropy(),
    MaximalLogits(),
    QueryKeyAngles(),
    HeadOutputs(),
    SinkUpdate(),
    KeyVectors(),
    MassiveActivations(),
    TokenPeaks(),
    OutlierStatistics(),
    SpikeDimensions(),
    SpectralBands(),
    MatrixEntropy(),
    HiddenSimilarity(),
    Mixing(),
    HiddenVectors(),
    ExpertPeaks(),
)
