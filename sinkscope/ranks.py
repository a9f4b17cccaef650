"""The name of before of `sinkscope.statistics.ranks`, for one release."""

from sinkscope.registry import renamed

__getattr__ = renamed(__name__, "sinkscope.statistics.ranks")
