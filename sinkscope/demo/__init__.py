"""The demonstration: measure a model, watch a sink emerge in one training run and not in another, write a page."""

from sinkscope.demo.children import ChildFailed
from sinkscope.demo.job import run
from sinkscope.demo.plan import DemoPlan, full, quick

__all__ = ["ChildFailed", "DemoPlan", "full", "quick", "run"]
