"""What happens to values beside being aggregated: biases and gates."""

from typing import Annotated

from pydantic import Field

from sinkscope.attention.outputs.bias import ValueBias
from sinkscope.attention.outputs.exclusive import Exclusive
from sinkscope.attention.outputs.gates import ElementGate, HeadGate, ValueGate

Output = Annotated[ValueBias | HeadGate | ElementGate | Exclusive, Field(discriminator="kind")]

__all__ = ["ElementGate", "Exclusive", "HeadGate", "Output", "ValueBias", "ValueGate"]
