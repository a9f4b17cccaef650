"""The quantized caches that `sinkscope generate` writes through."""

from __future__ import annotations

from torch import nn
from transformers import Cache

from sinkscope.errors import InputError, unknown
from sinkscope.quantization import SCHEMES, FirstTokens, MeasuredSinks, Spared


def rounded_cache(model: nn.Module, name: str, spare: str) -> Cache:
    """The cache of a scheme by its name. Raises `InputError` for names and choices that there are not."""
    stored = {scheme: SCHEMES[scheme].store for scheme in SCHEMES if SCHEMES[scheme].store is not None}
    if name not in stored:
        raise unknown("cache", name, ["full", *stored])
    store = stored[name]
    assert store is not None
    return store(model, _spared(spare))


def _spared(what: str) -> Spared | None:
    kind, _, number = what.partition(":")
    if what == "none":
        return None
    if what == "measured":
        return MeasuredSinks()
    if kind == "first" and number.isdecimal() and int(number):
        return FirstTokens(int(number))
    raise InputError(f"--spare {what}: write none, measured, or first:N with N of at least 1")
