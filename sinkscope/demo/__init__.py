"""The main job: measure a model, watch a sink emerge in one run and not in another, and write it all down."""

from sinkscope.demo.children import ChildFailed
from sinkscope.demo.job import run
from sinkscope.demo.plan import DemoPlan, full, quick

__all__ = ["ChildFailed", "DemoPlan", "full", "quick", "run"]
