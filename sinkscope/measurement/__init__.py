"""Measuring a model: what is observed while it runs, what was measured, and the numbers that follow from it.

`measure` and `observe` run a model; a `Measurement` holds labeled statistics, from which rates, tables and figures
follow (`metrics` has the formulas); `find_tokens` chooses tokens. The names are those of
`__init__.pyi`; what is behind a name is imported when it is first used, so that reading stored results needs no torch.
"""

import lazy_loader

from sinkscope.registry import moved

_here, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = moved(__name__, {"read": "sinkscope.measurement.read_call"}, _here)  # old names, for one release
