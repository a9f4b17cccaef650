"""Calibration: less or more weight on chosen tokens of a running model, exactly and without attention maps.

A line for each name, new methods too.
"""

from sinkscope.calibration.act import ACT as ACT
from sinkscope.calibration.reweigh import Reweigh as Reweigh
from sinkscope.calibration.temperature import Temperature as Temperature
from sinkscope.calibration.visual import VisualRedistribution as VisualRedistribution
