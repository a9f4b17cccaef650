from .calls.arithmetic import full_precision as full_precision
from .calls.arithmetic import rounding as rounding
from .calls.call import AttentionCall as AttentionCall
from .calls.reading import read as read
from .comparison import Comparison as Comparison
from .comparison import Comparisons as Comparisons
from .comparison import compare as compare
from .comparison import distinct as distinct
from .comparison import saved as saved
from .definition_rules import DEFINITIONS as DEFINITIONS
from .definition_rules import Definition as Definition
from .evidence import evidence_for as evidence_for
from .evidence import find_tokens as find_tokens
from .evidence import rows_of as rows_of
from .head_metric import HeadMetric as HeadMetric
from .head_metrics import HEAD_METRICS as HEAD_METRICS
from .heads import applicable as applicable
from .heads import head_table as head_table
from .heads import head_values as head_values
from .measurement import Measurement as Measurement
from .measuring import measure as measure
from .measuring import resolve_observers as resolve_observers
from .observers.bands import SpectralBands as SpectralBands
from .observers.diagonal import AttentionBefore as AttentionBefore
from .observers.diagonal import SelfAttention as SelfAttention
from .observers.diagonal import WindowMass as WindowMass
from .observers.entropy import AttentionEntropy as AttentionEntropy
from .observers.experts import ExpertPeaks as ExpertPeaks
from .observers.geometry import HiddenSimilarity as HiddenSimilarity
from .observers.geometry import HiddenVectors as HiddenVectors
from .observers.geometry import MatrixEntropy as MatrixEntropy
from .observers.geometry import Mixing as Mixing
from .observers.incoming import IncomingAttention as IncomingAttention
from .observers.kept import AttentionMaps as AttentionMaps
from .observers.kept import KeyVectors as KeyVectors
from .observers.lengths import ReceivedByLength as ReceivedByLength
from .observers.logits import MaximalLogits as MaximalLogits
from .observers.massive import MassiveActivations as MassiveActivations
from .observers.massive import TokenPeaks as TokenPeaks
from .observers.norms import HiddenNorms as HiddenNorms
from .observers.norms import QueryKeyAngles as QueryKeyAngles
from .observers.norms import QueryKeyValueNorms as QueryKeyValueNorms
from .observers.observer import OBSERVERS as OBSERVERS
from .observers.observer import Array as Array
from .observers.observer import Hidden as Hidden
from .observers.observer import LayerSums as LayerSums
from .observers.observer import Observer as Observer
from .observers.observer import Piece as Piece
from .observers.observer import divide as divide
from .observers.observer import every as every
from .observers.observer import in_every as in_every
from .observers.outliers import OutlierStatistics as OutlierStatistics
from .observers.outputs import HeadOutputs as HeadOutputs
from .observers.received import AttentionReceived as AttentionReceived
from .observers.received import EntriesReceived as EntriesReceived
from .observers.received import GivenTo as GivenTo
from .observers.received import QueriesAbove as QueriesAbove
from .observers.received import SlotReceived as SlotReceived
from .observers.rows import whole as whole
from .observers.rows import whole_rows as whole_rows
from .observers.spikes import SpikeDimensions as SpikeDimensions
from .observers.update import SinkUpdate as SinkUpdate
from .observing import Observation as Observation
from .observing import observe as observe
from .rates import rate_at as rate_at
from .rates import received as received
from .rates import stack_rates as stack_rates
from .rates import stacks_apart as stacks_apart
from .selection import PAPER as PAPER
from .selection import PER_HEAD as PER_HEAD
from .selection import VISIBLE as VISIBLE
from .selection import HeadView as HeadView
from .selection import TokenView as TokenView
from .selection import at as at
from .selection import column_of as column_of
from .selection import comparable_places as comparable_places
from .selection import denominator_of as denominator_of
from .selection import depth_labels as depth_labels
from .selection import depth_lengths as depth_lengths
from .selection import has_position as has_position
from .selection import layer_labels as layer_labels
from .selection import layers_of as layers_of
from .selection import need as need
from .selection import query_counts as query_counts
from .selection import sample_lengths as sample_lengths
from .selection import visible_queries as visible_queries
from .slots import SlotMass as SlotMass
from .slots import slot_mass as slot_mass
from .slots import slot_mass_by_layer as slot_mass_by_layer
from .strongest import Strongest as Strongest
from .strongest import comparable_rates as comparable_rates
from .strongest import rates_by_position as rates_by_position
from .strongest import strongest_by_layer as strongest_by_layer
from .strongest import strongest_position as strongest_position
from .tables import hidden_map_table as hidden_map_table
from .tables import hidden_norm_table as hidden_norm_table
from .tables import received_table as received_table
from .tables import value_norm_table as value_norm_table
from .texts import TokenTexts as TokenTexts

__all__ = [
    "DEFINITIONS",
    "HEAD_METRICS",
    "OBSERVERS",
    "PAPER",
    "PER_HEAD",
    "VISIBLE",
    "Array",
    "AttentionBefore",
    "AttentionCall",
    "AttentionEntropy",
    "AttentionMaps",
    "AttentionReceived",
    "Comparison",
    "Comparisons",
    "Definition",
    "EntriesReceived",
    "ExpertPeaks",
    "GivenTo",
    "HeadMetric",
    "HeadOutputs",
    "HeadView",
    "Hidden",
    "HiddenNorms",
    "HiddenSimilarity",
    "HiddenVectors",
    "IncomingAttention",
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
    "QueriesAbove",
    "QueryKeyAngles",
    "QueryKeyValueNorms",
    "ReceivedByLength",
    "SelfAttention",
    "SinkUpdate",
    "SlotMass",
    "SlotReceived",
    "SpectralBands",
    "SpikeDimensions",
    "Strongest",
    "TokenPeaks",
    "TokenTexts",
    "TokenView",
    "WindowMass",
    "applicable",
    "at",
    "column_of",
    "comparable_places",
    "comparable_rates",
    "compare",
    "denominator_of",
    "depth_labels",
    "depth_lengths",
    "distinct",
    "divide",
    "every",
    "evidence_for",
    "find_tokens",
    "full_precision",
    "has_position",
    "head_table",
    "head_values",
    "hidden_map_table",
    "hidden_norm_table",
    "in_every",
    "layer_labels",
    "layers_of",
    "measure",
    "need",
    "observe",
    "query_counts",
    "rate_at",
    "rates_by_position",
    "read",
    "received",
    "received_table",
    "resolve_observers",
    "rounding",
    "rows_of",
    "sample_lengths",
    "saved",
    "slot_mass",
    "slot_mass_by_layer",
    "stack_rates",
    "stacks_apart",
    "strongest_by_layer",
    "strongest_position",
    "value_norm_table",
    "visible_queries",
    "whole",
    "whole_rows",
]
