"""The main job: measure a model, watch a sink emerge in one run and not in another, and write it all down."""

from sinkscope.demo.children import ChildFailed
from sinkscope.demo.job import run
from sinkscope.demo.plan import Plan, full, quick

__all__ = ["ChildFailed", "Plan", "full", "quick", "run"]
