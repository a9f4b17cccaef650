"""The quantized caches that `sinkscope generate` writes through."""

from __future__ import annotations

from torch import nn
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.quantization import scheme_named
from sinkscope.sinks import parse


def rounded_cache(model: nn.Module, name: str, protect: str) -> Cache:
    """The cache of a scheme by its name, which keeps the tokens of `protect`, in words, in full precision.

    Raises `InputError` for names and choices that there are not, and for schemes that no cache can store.
    """
    scheme = scheme_named(name)
    if scheme.store is None:
        reason = "is only simulated" if scheme.caches else "is not about caches"
        raise InputError(f"--cache {name} {reason}: take kv4-kivi, kv2-kivi, kv4-token …")
    if protect.startswith("prefix"):
        raise InputError(
            f"--protect {protect}: a cache protects tokens of the prompt; begin the prompt with the prefix and give "
            "--protect first:N with the number of its tokens"
        )
    return scheme.store(model, parse(protect))
