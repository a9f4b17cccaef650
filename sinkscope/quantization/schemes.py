"""Schemes by name: one list for the command line, the documentation and `study`."""

from __future__ import annotations

from sinkscope.errors import unknown
from sinkscope.quantization.studies.scheme import QuantizationScheme

SCHEMES: dict[str, QuantizationScheme] = {}


def scheme_named(name: str) -> QuantizationScheme:
    """Raises `InputError` for a name that there is not, naming the nearest."""
    if name not in SCHEMES:
        raise unknown("scheme", name, SCHEMES)
    return SCHEMES[name]
