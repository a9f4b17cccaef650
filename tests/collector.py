"""What is freed with its last reference, and what only when Python's collector runs."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch import Tensor, nn


def left_by(use: Callable[[], object]) -> int:
    """Tensors that a use leaves behind as long as the collector does not run."""
    use()  # what is made once and kept
    gc.collect()
    gc.freeze()  # what is there already is not looked at again, here or later: that takes half a second each time
    gc.disable()
    try:
        use()
        return sum(type(value) in (Tensor, nn.Parameter) for value in gc.get_objects())
    finally:
        gc.enable()
