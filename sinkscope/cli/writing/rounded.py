"""The quantized caches that `sinkscope generate` writes through."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import Cache

from sinkscope.cli.measuring.choices import At, choices_of
from sinkscope.errors import InputError
from sinkscope.quantization import Prefix
from sinkscope.quantization.schemes import scheme_named


def rounded_cache(model: nn.Module, name: str, spare: str, ids: Tensor) -> Cache:
    """The cache of a scheme by its name, which spares what `spare` says of the prompt `ids`.

    Raises `InputError` for names and choices that there are not, and for schemes that no cache can store.
    """
    scheme, builders = scheme_named(name), choices_of([spare])
    if scheme.store is None:
        reason = "is only simulated" if scheme.caches else "is not about caches"
        raise InputError(f"--cache {name} {reason}: take kv4-kivi, kv2-kivi, kv4-token …")
    chosen = [build(At(model, {"input_ids": ids})) for build in builders.values()]
    spared = chosen[0] if chosen else None
    if isinstance(spared, Prefix):
        raise InputError(
            f"--protect {spare}: a cache protects tokens of the prompt; begin the prompt with the prefix and give "
            f"--protect first:{len(spared.ids)}"
        )
    return scheme.store(model, spared)
