"""The name of before of `sinkscope.statistics.spectral`, for one release."""

from sinkscope.registry import renamed

__getattr__ = renamed(__name__, "sinkscope.statistics.spectral")
