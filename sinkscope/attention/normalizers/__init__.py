"""From scores to weights: a frozen piece per normalizer."""

from typing import Annotated

from sinkscope.attention.normalizers.base import MetricWeights
from sinkscope.attention.normalizers.base import Normalizer as NormalizerPiece
from sinkscope.attention.normalizers.elementwise import Elu, Relu, Sigmoid
from sinkscope.attention.normalizers.entmax import Entmax
from sinkscope.attention.normalizers.linear import Linear
from sinkscope.attention.normalizers.softmax import (
    ClippedSoftmax,
    PowerSigmoid,
    PowerSoftmax,
    ScaledSoftmax,
    Softmax,
    Softpick,
)
from sinkscope.attention.normalizers.stick_breaking import StickBreaking
from sinkscope.attention.pieces import OpenTo

BuiltIn = (
    Softmax
    | ScaledSoftmax
    | PowerSoftmax
    | ClippedSoftmax
    | Softpick
    | Entmax
    | Sigmoid
    | PowerSigmoid
    | Elu
    | Relu
    | Linear
    | StickBreaking
)
Normalizer = Annotated[BuiltIn | NormalizerPiece, OpenTo("normalizer", BuiltIn, NormalizerPiece)]

__all__ = [
    "ClippedSoftmax",
    "Elu",
    "Entmax",
    "Linear",
    "MetricWeights",
    "Normalizer",
    "NormalizerPiece",
    "PowerSigmoid",
    "PowerSoftmax",
    "Relu",
    "ScaledSoftmax",
    "Sigmoid",
    "Softmax",
    "Softpick",
    "StickBreaking",
]
