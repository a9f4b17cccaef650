"""Quantization: what it costs, and which tokens, channels and layers to spare so that it costs less.

A line for each name, new methods too.
"""

from sinkscope.quantization.grid import Grid as Grid
from sinkscope.quantization.grid import Steps as Steps
from sinkscope.quantization.grid import decode as decode
from sinkscope.quantization.grid import effective_bits as effective_bits
from sinkscope.quantization.grid import encode as encode
from sinkscope.quantization.grid import fake_quantize as fake_quantize
from sinkscope.quantization.grid import steps_of as steps_of
from sinkscope.quantization.spared import Spared as Spared
