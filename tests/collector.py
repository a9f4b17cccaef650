"""What is freed with its last reference, and what only when Python's collector runs."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch import Tensor, nn


def left_by(use: Callable[[], object]) -> int:
    """Tensors that are there after a use and were not before, as long as the collector does not run."""
    use()  # what is made once, and kept
    gc.collect()
    gc.disable()
    try:
        before = _tensors()  # held, so that no new one gets the place of one that went
        known = {id(value) for value in before}
        use()
        return sum(id(value) not in known for value in _tensors())
    finally:
        gc.enable()


def _tensors() -> list[Tensor]:
    return [value for value in gc.get_objects() if type(value) in (Tensor, nn.Parameter)]
