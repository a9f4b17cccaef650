"""Searches of quantizers, cut short where what they find does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from sinkscope.quantization import DuQuant
from sinkscope.quantization.linear import slim


@pytest.fixture(scope="module")
def quick_searches() -> Iterator[None]:
    """A sixteenth of DuQuant's rotations, and a tenth of SliM's scales."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DuQuant, "of", partial(DuQuant.of, steps=16))
        patch.setattr(slim, "SHRINKS", slim.SHRINKS[::10])
        yield
