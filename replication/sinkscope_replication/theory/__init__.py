"""Theory: closed forms and identities that need no training, each a claim with a verdict on real lab models."""

from sinkscope_replication.theory.check import Check, check
from sinkscope_replication.theory.curves import Curve, sinks_by_length, spread_by_depth
from sinkscope_replication.theory.running import CHECKS, TOPICS, by_topic, failing, run_checks

__all__ = [
    "CHECKS",
    "TOPICS",
    "Check",
    "Curve",
    "by_topic",
    "check",
    "failing",
    "run_checks",
    "sinks_by_length",
    "spread_by_depth",
]
