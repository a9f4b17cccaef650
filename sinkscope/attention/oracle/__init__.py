"""Check that an attention function computes what it claims, against plain float64 arithmetic."""

from sinkscope.attention.oracle.backends import AttentionFunction, backend
from sinkscope.attention.oracle.cases import CASES, FEATURES, Case, Problem
from sinkscope.attention.oracle.comparing import Disagreement, Parity, ParityRow, parity
from sinkscope.attention.oracle.reference import DEFECTS, Exact, exact
from sinkscope.attention.oracle.styles import STYLES, Style

__all__ = [
    "CASES",
    "DEFECTS",
    "FEATURES",
    "STYLES",
    "AttentionFunction",
    "Case",
    "Disagreement",
    "Exact",
    "Parity",
    "ParityRow",
    "Problem",
    "Style",
    "backend",
    "exact",
    "parity",
]
