"""What happens to values besides aggregation: biases, gates, projections."""

from typing import Annotated

from sinkscope.attention.outputs.bias import ValueBias
from sinkscope.attention.outputs.exclusive import Exclusive
from sinkscope.attention.outputs.gates import (
    ElementGate,
    HeadGate,
    OwnValueGate,
    ValueGate,
    ValueGradient,
    ValueStateGate,
)
from sinkscope.attention.outputs.norm import HeadNorm, HeadNormModule
from sinkscope.attention.pieces import ByKind, OpenTo
from sinkscope.attention.pieces import Output as OutputPiece

BuiltIn = ValueBias | HeadGate | ElementGate | Exclusive | OwnValueGate | HeadNorm
Output = Annotated[BuiltIn | OutputPiece, OpenTo("output", BuiltIn, OutputPiece)]

OfValues = Annotated[ValueGate | ValueStateGate | ValueGradient, ByKind()]

__all__ = [
    "ElementGate",
    "Exclusive",
    "HeadGate",
    "HeadNorm",
    "HeadNormModule",
    "OfValues",
    "Output",
    "OutputPiece",
    "OwnValueGate",
    "ValueBias",
    "ValueGate",
    "ValueGradient",
    "ValueStateGate",
]
