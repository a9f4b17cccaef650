"""Cached keys and values: rounded in a simulation, and in a cache that stores packed codes."""

from sinkscope.quantization.kv.cache import SinkQuantizedCache as SinkQuantizedCache
from sinkscope.quantization.kv.cache import quantized_cache as quantized_cache
from sinkscope.quantization.kv.cached import QuantizeCache as QuantizeCache
from sinkscope.quantization.kv.layer import SinkQuantizedLayer as SinkQuantizedLayer
from sinkscope.quantization.kv.rounding import rounded_states as rounded_states
from sinkscope.quantization.kv.scheme import CacheScheme as CacheScheme
from sinkscope.quantization.kv.sensitivity import find_codebooks as find_codebooks
from sinkscope.quantization.kv.states import calibrated_scales as calibrated_scales
from sinkscope.quantization.kv.states import read_states as read_states
