"""Every line of the catalog, one query at a time, in plain numbers and loops: written from the formulas.

A line is a function of a `Row` that returns the output of its query. To add one: `@formula` over a function with the
name of the line, in the module named like the catalog's.
"""

from . import around, biases, grid, softmaxes
from .row import FORMULAS, Row

__all__ = ["FORMULAS", "Row", "around", "biases", "grid", "softmaxes"]
