"""The whole catalogue, one entry at a time."""

from __future__ import annotations

import pytest

import sinkscope.attention as zoo


@pytest.fixture(params=list(zoo.CATALOG))
def spec(request: pytest.FixtureRequest) -> zoo.AttentionSpec:
    return zoo.CATALOG[request.param]
