"""What sparing tokens buys: quantized models beside each other on the same texts, the controls always among them."""

from sinkscope.quantization.studies.result import Study as Study
from sinkscope.quantization.studies.running import study as study
from sinkscope.quantization.studies.scheme import QuantizationScheme as QuantizationScheme
