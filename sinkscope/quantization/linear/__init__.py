"""Linear maps: quantized weights and inputs, and the methods that make quantizing them cheaper, one per file."""

from sinkscope.quantization.linear.awq import AWQ as AWQ
from sinkscope.quantization.linear.columns import OutlyingColumns as OutlyingColumns
from sinkscope.quantization.linear.convert import converted as converted
from sinkscope.quantization.linear.duquant import DuQuant as DuQuant
from sinkscope.quantization.linear.gptq import GPTQ as GPTQ
from sinkscope.quantization.linear.maps import LinearMap as LinearMap
from sinkscope.quantization.linear.maps import left_out as left_out
from sinkscope.quantization.linear.maps import linear_maps as linear_maps
from sinkscope.quantization.linear.quantize import QuantizeLinear as QuantizeLinear
from sinkscope.quantization.linear.quantize import Rounding as Rounding
from sinkscope.quantization.linear.quantize import Static as Static
from sinkscope.quantization.linear.quantize import calibrated as calibrated
from sinkscope.quantization.linear.rotation import RotateInputs as RotateInputs
from sinkscope.quantization.linear.rotation import RotateResidual as RotateResidual
from sinkscope.quantization.linear.slim import SliM as SliM
from sinkscope.quantization.linear.smoothing import SmoothQuant as SmoothQuant
from sinkscope.quantization.linear.transform import InputTransform as InputTransform
from sinkscope.quantization.linear.transform import Transform as Transform
from sinkscope.quantization.linear.transform import Transforms as Transforms
