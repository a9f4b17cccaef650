"""Samples in as large batches as memory allows."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import torch

from sinkscope.errors import InputError


def in_batches(run: Callable[[slice], None], samples: int, batch_size: int, described: str = "") -> None:
    """Call `run` on consecutive rows, `batch_size` at a time; where they do not fit into memory, on half as many.

    A halved size is kept for the rest, and said in a `UserWarning`. Raises `InputError` where one sample does not fit;
    `described` then says what it is. `run` must count nothing for a call that ends in an error.
    """
    start, size = 0, min(batch_size, samples)
    while start < samples:
        try:
            run(slice(start, min(start + size, samples)))
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            error.__traceback__ = None  # it holds what the failed call had allocated
        else:
            start += size
            continue
        _free()
        size = _halved(min(size, samples - start), described)


def _halved(size: int, described: str) -> int:
    if size == 1:
        raise InputError(f"out of memory with a single sample {described}".rstrip() + ": use fewer tokens")
    warnings.warn(f"out of memory with {size} samples at once: going on with {size // 2}", UserWarning, stacklevel=4)
    return size // 2


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Also the CPU allocator's refusal, which has no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
