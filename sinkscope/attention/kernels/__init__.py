"""Fused kernels for the element-wise family, offered only on devices where a comparison has confirmed them.

python -m sinkscope.attention.kernels.confirm      on a machine with CUDA: compares everything, writes the record
"""

from sinkscope.attention.kernels.entry import fused
from sinkscope.attention.kernels.offer import obstacle
from sinkscope.attention.kernels.plan import ACTIVATIONS, Plan, plan_of
from sinkscope.attention.kernels.record import Confirmation, confirmed

__all__ = ["ACTIVATIONS", "Confirmation", "Plan", "confirmed", "fused", "obstacle", "plan_of"]
