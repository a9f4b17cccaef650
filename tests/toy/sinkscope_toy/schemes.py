"""A quantization scheme: weights and activations of five bits."""

from __future__ import annotations

import sinkscope as ss
from sinkscope.grids import Grid
from sinkscope.quantization import QuantizeLinear


@ss.scheme
def toy_five(model, calibration, protect):
    """Weights and activations of 5 bits, one range per output and per token."""
    return QuantizeLinear(Grid(5), Grid(5), protect=protect)
