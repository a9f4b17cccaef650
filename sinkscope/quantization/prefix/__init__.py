"""A prefix of sink tokens: found, kept in full precision in the cache of a quantized model, and saved."""

from sinkscope.quantization.prefix.intact import calibrate_prefix as calibrate_prefix
from sinkscope.quantization.prefix.prefix import Prefix as Prefix
from sinkscope.quantization.prefix.search import Outlier as Outlier
from sinkscope.quantization.prefix.search import find_prefix as find_prefix
from sinkscope.quantization.prefix.search import prefix_cost as prefix_cost
