"""Probes: observe a model while it runs, and measure what its attention does.

A line for each name, new observers too.
"""

from sinkscope.measurements import Comparison as Comparison
from sinkscope.measurements import Interval as Interval
from sinkscope.measurements import Measurement as Measurement
from sinkscope.measurements import compare as compare
from sinkscope.probes import registering as registering  # so that entry points of observers are taken
from sinkscope.probes.calls import guard as guard
from sinkscope.probes.calls.arithmetic import full_precision as full_precision
from sinkscope.probes.calls.arithmetic import rounding as rounding
from sinkscope.probes.calls.call import AttentionCall as AttentionCall
from sinkscope.probes.calls.reading import read as read
from sinkscope.probes.choosing import chosen as chosen
from sinkscope.probes.measuring import measure as measure
from sinkscope.probes.observers.bands import SpectralBands as SpectralBands
from sinkscope.probes.observers.diagonal import AttentionBefore as AttentionBefore
from sinkscope.probes.observers.diagonal import SelfAttention as SelfAttention
from sinkscope.probes.observers.diagonal import WindowMass as WindowMass
from sinkscope.probes.observers.entropy import AttentionEntropy as AttentionEntropy
from sinkscope.probes.observers.experts import ExpertPeaks as ExpertPeaks
from sinkscope.probes.observers.geometry import HiddenSimilarity as HiddenSimilarity
from sinkscope.probes.observers.geometry import HiddenVectors as HiddenVectors
from sinkscope.probes.observers.geometry import MatrixEntropy as MatrixEntropy
from sinkscope.probes.observers.geometry import Mixing as Mixing
from sinkscope.probes.observers.incoming import IncomingAttention as IncomingAttention
from sinkscope.probes.observers.kept import AttentionMaps as AttentionMaps
from sinkscope.probes.observers.kept import KeyVectors as KeyVectors
from sinkscope.probes.observers.lengths import ReceivedByLength as ReceivedByLength
from sinkscope.probes.observers.logits import MaximalLogits as MaximalLogits
from sinkscope.probes.observers.massive import MassiveActivations as MassiveActivations
from sinkscope.probes.observers.massive import TokenPeaks as TokenPeaks
from sinkscope.probes.observers.norms import HiddenNorms as HiddenNorms
from sinkscope.probes.observers.norms import QueryKeyAngles as QueryKeyAngles
from sinkscope.probes.observers.norms import QueryKeyValueNorms as QueryKeyValueNorms
from sinkscope.probes.observers.observer import OBSERVERS as OBSERVERS
from sinkscope.probes.observers.observer import Array as Array
from sinkscope.probes.observers.observer import Hidden as Hidden
from sinkscope.probes.observers.observer import LayerSums as LayerSums
from sinkscope.probes.observers.observer import Observer as Observer
from sinkscope.probes.observers.observer import Piece as Piece
from sinkscope.probes.observers.observer import divide as divide
from sinkscope.probes.observers.observer import every as every
from sinkscope.probes.observers.observer import in_every as in_every
from sinkscope.probes.observers.outliers import OutlierStatistics as OutlierStatistics
from sinkscope.probes.observers.outputs import HeadOutputs as HeadOutputs
from sinkscope.probes.observers.received import AttentionReceived as AttentionReceived
from sinkscope.probes.observers.received import EntriesReceived as EntriesReceived
from sinkscope.probes.observers.received import GivenTo as GivenTo
from sinkscope.probes.observers.received import QueriesAbove as QueriesAbove
from sinkscope.probes.observers.received import SlotReceived as SlotReceived
from sinkscope.probes.observers.rows import whole as whole
from sinkscope.probes.observers.rows import whole_rows as whole_rows
from sinkscope.probes.observers.spikes import SpikeDimensions as SpikeDimensions
from sinkscope.probes.observers.update import SinkUpdate as SinkUpdate
from sinkscope.probes.observing import Observation as Observation
from sinkscope.probes.observing import observe as observe
