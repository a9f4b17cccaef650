"""Which tokens are spared: kept in full precision, and no part of any range.

A line for each name, new choices too.
"""

from sinkscope.model.columns import Columns as Columns
from sinkscope.quantization.spared.drawn import RandomTokens as RandomTokens
from sinkscope.quantization.spared.drawn import others_of as others_of
from sinkscope.quantization.spared.found import MeasuredSinks as MeasuredSinks
from sinkscope.quantization.spared.found import OutlyingTokens as OutlyingTokens
from sinkscope.quantization.spared.found import SpikeTokens as SpikeTokens
from sinkscope.quantization.spared.named import FirstTokens as FirstTokens
from sinkscope.quantization.spared.named import Positions as Positions
from sinkscope.quantization.spared.named import Tokens as Tokens
from sinkscope.quantization.spared.passes import SparedInPass as SparedInPass
from sinkscope.quantization.spared.spared import Known as Known
from sinkscope.quantization.spared.spared import Spared as Spared
