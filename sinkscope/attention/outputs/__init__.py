"""What happens to values besides aggregation: biases, gates, projections."""

from typing import Annotated

from sinkscope.attention.outputs.bias import ValueBias
from sinkscope.attention.outputs.exclusive import Exclusive
from sinkscope.attention.outputs.gates import ElementGate, HeadGate, ValueGate
from sinkscope.attention.pieces import OpenTo
from sinkscope.attention.pieces import Output as OutputPiece

Own = ValueBias | HeadGate | ElementGate | Exclusive
Output = Annotated[Own | OutputPiece, OpenTo("output", Own, OutputPiece)]

__all__ = ["ElementGate", "Exclusive", "HeadGate", "Output", "OutputPiece", "ValueBias", "ValueGate"]
