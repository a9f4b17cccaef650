"""The name of before of `sinkscope.measurement.metrics`, for one release."""

from sinkscope.registry import renamed

__getattr__ = renamed(__name__, "sinkscope.measurement.metrics", {"lift": "step", "boost": "lift"})
