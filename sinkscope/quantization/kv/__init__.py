"""Keys and values that are cached: rounded in a simulation, and for good in a cache that holds packed codes."""

from sinkscope.quantization.kv.cache import SinkQuantizedCache as SinkQuantizedCache
from sinkscope.quantization.kv.cache import quantized_cache as quantized_cache
from sinkscope.quantization.kv.cached import QuantizeCache as QuantizeCache
from sinkscope.quantization.kv.layer import SinkQuantizedLayer as SinkQuantizedLayer
from sinkscope.quantization.kv.scheme import Scheme as Scheme
from sinkscope.quantization.kv.sensitivity import find_codebooks as find_codebooks
