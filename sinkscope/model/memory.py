"""The memory of this process."""

from __future__ import annotations

import ctypes
import platform

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep the memory of freed tensors instead of returning every large block to the kernel.

    Each training step, and each pass over texts, frees and allocates the same tensors, and the kernel clears every
    returned page again. Keeping them made a step of `nano` 6 % shorter with softmax and 17 % with sigmoid attention on
    one core, and the passes of `check` over SmolLM2 5 % shorter on two. Values do not change. Returns whether it took
    effect: it does on glibc only.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
