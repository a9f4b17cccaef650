"""Fused Triton kernels for the element-wise family, taken where a comparison on this very GPU found them exact."""

from sinkscope.attention.kernels.comparison import KernelCase, Specialization, compare, compared, every
from sinkscope.attention.kernels.confirmation import Machine, Outcome, confirm, keep, known, machine
from sinkscope.attention.kernels.entry import fused, misfit, unavailable
from sinkscope.attention.kernels.plan import ACTIVATIONS, KernelPlan, plan_of

__all__ = [
    "ACTIVATIONS",
    "KernelCase",
    "KernelPlan",
    "Machine",
    "Outcome",
    "Specialization",
    "compare",
    "compared",
    "confirm",
    "every",
    "fused",
    "keep",
    "known",
    "machine",
    "misfit",
    "plan_of",
    "unavailable",
]
