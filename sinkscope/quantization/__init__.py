"""Quantization: what it costs, and which tokens, channels and layers to protect to make it cost less."""

from typing import Any
from warnings import warn

from sinkscope import sinks as _sinks
from sinkscope.caches import QHitter as QHitter  # the old name; entry points of earlier installations read it
from sinkscope.grids import Codebooks as Codebooks
from sinkscope.grids import Grid as Grid
from sinkscope.grids import Steps as Steps
from sinkscope.grids import decode as decode
from sinkscope.grids import effective_bits as effective_bits
from sinkscope.grids import encode as encode
from sinkscope.grids import fake_quantize as fake_quantize
from sinkscope.grids import steps_of as steps_of
from sinkscope.quantization.hazard import Fp8Underflow as Fp8Underflow
from sinkscope.quantization.hazard import Hazards as Hazards
from sinkscope.quantization.hazard import hazards as hazards
from sinkscope.quantization.kv import QuantizeCache as QuantizeCache
from sinkscope.quantization.kv import SinkQuantizedCache as SinkQuantizedCache
from sinkscope.quantization.kv import SinkQuantizedLayer as SinkQuantizedLayer
from sinkscope.quantization.kv import find_codebooks as find_codebooks
from sinkscope.quantization.kv import quantized_cache as quantized_cache
from sinkscope.quantization.kv import read_states as read_states
from sinkscope.quantization.kv import rounded_states as rounded_states
from sinkscope.quantization.kv.cache import full_layers as full_layers
from sinkscope.quantization.kv.cache import rounded_layers as rounded_layers
from sinkscope.quantization.linear import AWQ as AWQ
from sinkscope.quantization.linear import GPTQ as GPTQ
from sinkscope.quantization.linear import DuQuant as DuQuant
from sinkscope.quantization.linear import InputTransform as InputTransform
from sinkscope.quantization.linear import LinearMap as LinearMap
from sinkscope.quantization.linear import OutlyingColumns as OutlyingColumns
from sinkscope.quantization.linear import QuantizeLinear as QuantizeLinear
from sinkscope.quantization.linear import RotateInputs as RotateInputs
from sinkscope.quantization.linear import RotateResidual as RotateResidual
from sinkscope.quantization.linear import Rounding as Rounding
from sinkscope.quantization.linear import SliM as SliM
from sinkscope.quantization.linear import SmoothQuant as SmoothQuant
from sinkscope.quantization.linear import Static as Static
from sinkscope.quantization.linear import Transform as Transform
from sinkscope.quantization.linear import Transforms as Transforms
from sinkscope.quantization.linear import calibrated as calibrated
from sinkscope.quantization.linear import converted as converted
from sinkscope.quantization.linear import left_out as left_out
from sinkscope.quantization.linear import linear_maps as linear_maps
from sinkscope.quantization.prefix import Prefix as Prefix
from sinkscope.quantization.prefix import calibrate_prefix as calibrate_prefix
from sinkscope.quantization.prefix import find_prefix as find_prefix
from sinkscope.quantization.prefix import prefix_cost as prefix_cost
from sinkscope.quantization.prefix.serving import own_tokens as own_tokens
from sinkscope.quantization.protected import ProtectedInPass as ProtectedInPass
from sinkscope.quantization.protected import matched_tokens as matched_tokens
from sinkscope.quantization.protected import random_tokens as random_tokens
from sinkscope.quantization.protected import resolved as resolved
from sinkscope.quantization.schemes import SCHEMES as SCHEMES
from sinkscope.quantization.schemes import QuantizationScheme as QuantizationScheme
from sinkscope.quantization.schemes import scheme as scheme
from sinkscope.quantization.schemes import scheme_named as scheme_named
from sinkscope.registry import moved as _moved

_RENAMED: dict[str, tuple[str, Any]] = {
    "Spared": ("sinks.Choice", _sinks.Choice),
    "MeasuredSinks": ("sinks.Measured", _sinks.Measured),
    "FirstTokens": ("sinks.First", _sinks.First),
    "OutlyingTokens": ("sinks.Outliers", lambda site="down", ratio=20.0: _sinks.Outliers(ratio, site)),
    "Positions": ("sinks.Positions", lambda positions: _sinks.Positions(*positions)),
    "Tokens": ("sinks.TokenIds", lambda ids: _sinks.TokenIds(*ids)),
    "SpikeTokens": ("sinks.Spikes", _sinks.Spikes),
    "Known": ("sinks.Tokens", _sinks.Tokens),
    "SparedInPass": ("quantization.ProtectedInPass", ProtectedInPass),
}  # old names and their new ones, for one release


def _changed(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    new, made = _RENAMED[name]
    warn(f"sinkscope.quantization.{name} is now sinkscope.{new}", DeprecationWarning, stacklevel=3)
    return made


__getattr__ = _moved(
    __name__,
    {
        "study": "sinkscope.trials.scheme_trial",
        "Study": "sinkscope.trials.Trial",
        "Columns": "sinkscope.model.columns.TokenColumns",
    },
    _changed,
)  # old names whose new ones do the same, for one release
