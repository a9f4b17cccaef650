"""Names of before, for one release: comparisons of caches are trials (`sinkscope.trials`)."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import Cache

    from sinkscope.trials import Arm, Trial

MOVED = {
    "FULL": "trials.arm:REFERENCE",
    "CacheComparison": "trials:Trial",
    "transformers_quantized": "trials:transformers_quantized",
    "held_bytes": "caches.sizes:held_bytes",
    **{
        name: f"trials:{name}"
        for name in (
            *("Alphabet", "Arm", "Asked", "Feed", "Needles", "Recalled", "Speed"),
            *("feeding", "noise", "recalled", "speeds", "stream_nll"),
        )
    },
}
OTHERWISE = {"compare_caches": "trials.run", "arm": "trials.cached", "full": "trials.unchanged"}


def __getattr__(name: str) -> object:
    if name in MOVED:
        room, _, new = MOVED[name].partition(":")
        value = getattr(importlib.import_module(f"sinkscope.{room}"), new)
    elif name in OTHERWISE:
        room, new, value = *OTHERWISE[name].split("."), globals()[f"_{name}"]
    else:
        raise AttributeError(f"module 'sinkscope.evaluate' has no attribute '{name}'")
    warnings.warn(f"sinkscope.evaluate.{name} is sinkscope.{room}.{new} now", DeprecationWarning, stacklevel=2)
    return value


def _arm(name: str, make: Callable[[nn.Module], Cache], series: str = "", *, control: bool = False) -> Arm:
    from sinkscope.errors import InputError
    from sinkscope.trials import cached

    if control:
        raise InputError("control=True is not read any more: a control is made by the arm itself, in sinkscope.trials")
    return cached(name, make, series=series or name)


def _full() -> Arm:
    from sinkscope.trials import unchanged

    return unchanged()


def _compare_caches(
    model: nn.Module,
    ids: Any,
    arms: Any,
    *,
    context: int,
    needles: Any = None,
    generate: int = 0,
    rounds: int = 3,
    **options: Any,
) -> Trial:
    from sinkscope.errors import InputError
    from sinkscope.trials import ThroughCache, run

    if generate:
        raise InputError("tokens that are written are a reading of their own: trials.run(..., reading=Written(n))")
    return run(model, ids, arms, reading=ThroughCache(context), needles=needles, rounds=rounds, **options)
