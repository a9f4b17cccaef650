"""Schemes of cached keys and values, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sinkscope.quantization.grid import Grid
from sinkscope.quantization.kv.cache import SinkQuantizedCache, quantized_cache
from sinkscope.quantization.kv.cached import QuantizeCache
from sinkscope.quantization.spared import Spared
from sinkscope.quantization.studies.scheme import QuantizationScheme

GROUP = 32  # tokens of a range of KIVI's keys
BITS = (2, 3, 4, 8)


def _scheme(name: str, says: str, keys: Grid, values: Grid, *, stored: bool) -> QuantizationScheme:
    def make(model: nn.Module, calibration: Mapping[str, Any], spared: Spared | None) -> QuantizeCache:
        return QuantizeCache(keys, values, spared)

    def store(model: nn.Module, spared: Spared | None) -> SinkQuantizedCache:
        return quantized_cache(model, keys, values, spared)

    return QuantizationScheme(name, says, make, caches=True, store=store if stored else None)


def _of(bits: int) -> tuple[QuantizationScheme, ...]:
    over_token, over_head = Grid(bits, "token"), Grid(bits, "head")
    over_channel = Grid(bits, "channel", group=GROUP)
    return (
        _scheme(
            f"kv{bits}-kivi",
            f"keys of {bits} bits over each channel of {GROUP} tokens, values over each token (KIVI)",
            over_channel,
            over_token,
            stored=True,
        ),
        _scheme(
            f"kv{bits}-token",
            f"keys and values of {bits} bits over each token of a head",
            over_token,
            over_token,
            stored=True,
        ),
        _scheme(
            f"kv{bits}-head",
            f"keys and values of {bits} bits, one range for all tokens of a head so far; simulated",
            over_head,
            over_head,
            stored=False,
        ),
    )


KV_SCHEMES: dict[str, QuantizationScheme] = {scheme.name: scheme for bits in BITS for scheme in _of(bits)}
