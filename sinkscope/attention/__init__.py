"""The zoo: attention operations as values, their masks, the reference, the fast paths and the catalog."""

from sinkscope.attention import registering as registering  # so that entry points of operations are taken
from sinkscope.attention.catalog import ALIASES, CATALOG, ENTRIES, SECTIONS, Entry, name_of, named, resolve, sections
from sinkscope.attention.context import Bias, Context
from sinkscope.attention.difference import Difference
from sinkscope.attention.functional import Explanation, attend, explain
from sinkscope.attention.lse import token_share, with_sink, without_sink
from sinkscope.attention.masks import (
    Alone,
    Causal,
    Document,
    Full,
    Mask,
    Strict,
    TokenAxis,
    VisiblePrefix,
    Window,
    Without,
)
from sinkscope.attention.masks import Combinable as MaskPiece
from sinkscope.attention.normalizers import (
    ClippedSoftmax,
    Elu,
    Entmax,
    Linear,
    NormalizerPiece,
    PowerSigmoid,
    PowerSoftmax,
    Relu,
    ScaledSoftmax,
    Sigmoid,
    Softmax,
    Softpick,
    StickBreaking,
)
from sinkscope.attention.operation import Attended, Operation, Weights, operation_of
from sinkscope.attention.operation import Path as PathName
from sinkscope.attention.oracle import CASES as PARITY_CASES
from sinkscope.attention.oracle import Disagreement, Parity, parity
from sinkscope.attention.outputs import (
    ElementGate,
    Exclusive,
    HeadGate,
    HeadNorm,
    HeadNormModule,
    OwnValueGate,
    ValueBias,
    ValueGate,
    ValueGradient,
    ValueStateGate,
)
from sinkscope.attention.paths.sdpa import adds_slots
from sinkscope.attention.pieces import PACKAGE as REGISTERED_BY
from sinkscope.attention.pieces import Learned, Sizes, is_registered
from sinkscope.attention.pieces import Output as OutputPiece
from sinkscope.attention.pieces import Similarity as SimilarityPiece
from sinkscope.attention.pieces import Slot as SlotPiece
from sinkscope.attention.scores import DotProduct, Kernel, dot_product
from sinkscope.attention.scoring.decay import ForgettingGate
from sinkscope.attention.scoring.first_key import FirstKeyLogit
from sinkscope.attention.scoring.query_key import CosineScores, QueryKeyNorm
from sinkscope.attention.scoring.temperature import LogLength
from sinkscope.attention.slots import FixedValue, KeySlot, LatentSlots, LogitSlot, SlotTerms, SuffixSlot, ZeroSlot
from sinkscope.attention.spec import AttentionSpec
from sinkscope.attention.visibility import Kept, Visibility, held_columns
from sinkscope.registry import moved

__all__ = [
    "ALIASES",
    "CATALOG",
    "ENTRIES",
    "PARITY_CASES",
    "REGISTERED_BY",
    "SECTIONS",
    "Alone",
    "Attended",
    "AttentionSpec",
    "Bias",
    "Causal",
    "ClippedSoftmax",
    "Context",
    "CosineScores",
    "Difference",
    "Disagreement",
    "Document",
    "DotProduct",
    "ElementGate",
    "Elu",
    "Entmax",
    "Entry",
    "Exclusive",
    "Explanation",
    "FirstKeyLogit",
    "FixedValue",
    "ForgettingGate",
    "Full",
    "HeadGate",
    "HeadNorm",
    "HeadNormModule",
    "Kept",
    "Kernel",
    "KeySlot",
    "LatentSlots",
    "Learned",
    "Linear",
    "LogLength",
    "LogitSlot",
    "Mask",
    "MaskPiece",
    "NormalizerPiece",
    "Operation",
    "OutputPiece",
    "OwnValueGate",
    "Parity",
    "PathName",
    "PowerSigmoid",
    "PowerSoftmax",
    "QueryKeyNorm",
    "Relu",
    "ScaledSoftmax",
    "Sigmoid",
    "SimilarityPiece",
    "Sizes",
    "SlotPiece",
    "SlotTerms",
    "Softmax",
    "Softpick",
    "StickBreaking",
    "Strict",
    "SuffixSlot",
    "TokenAxis",
    "ValueBias",
    "ValueGate",
    "ValueGradient",
    "ValueStateGate",
    "Visibility",
    "VisiblePrefix",
    "Weights",
    "Window",
    "Without",
    "ZeroSlot",
    "adds_slots",
    "attend",
    "dot_product",
    "explain",
    "held_columns",
    "is_registered",
    "name_of",
    "named",
    "operation_of",
    "parity",
    "resolve",
    "sections",
    "token_share",
    "with_sink",
    "without_sink",
]

__getattr__ = moved(
    __name__, {"Tokens": "sinkscope.attention.TokenAxis", "Prefix": "sinkscope.attention.VisiblePrefix"}
)  # old names, for one release
