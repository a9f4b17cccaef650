"""Hazards: what in a model makes quantization costly, site by site, and what to protect because of it."""

from sinkscope.quantization.hazard.finding import hazards as hazards
from sinkscope.quantization.hazard.result import Hazards as Hazards
from sinkscope.quantization.hazard.underflow import Fp8Underflow as Fp8Underflow
