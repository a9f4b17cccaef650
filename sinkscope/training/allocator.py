"""Memory of a training step on a CPU."""

from __future__ import annotations

import ctypes
import platform

# glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_KEEP = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep the memory of freed tensors instead of handing every large one back to the kernel.

    Each training step frees and asks for the same tensors; page by page, the kernel clears them anew. Keeping them made
    a step of `nano` 6 % shorter with softmax and 17 % with sigmoid attention on one core. Values do not change. True
    where it took effect: on glibc alone, other C libraries are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _KEEP))
