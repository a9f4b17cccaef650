"""Every operation, one at a time: `spec` is each line of the catalog, `variant` each line with other options too."""

from __future__ import annotations

import pytest

import sinkscope.attention as zoo
from sinkscope.attention.paths import chunked, flash, streamed

from .variants import VARIANTS, Variant


@pytest.fixture(params=list(zoo.CATALOG))
def spec(request: pytest.FixtureRequest) -> zoo.AttentionSpec:
    return zoo.CATALOG[request.param]


@pytest.fixture(params=VARIANTS, ids=str)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few dozen tokens are as many blocks as thousands are otherwise."""
    monkeypatch.setattr(flash, "ROWS", 32)
    monkeypatch.setattr(streamed, "ROWS", 16)
    monkeypatch.setattr(chunked, "ROWS", 16)
    monkeypatch.setattr(chunked, "SMALL", 32)
