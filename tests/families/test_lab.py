"""The lab model keeps the contract of the families."""

from __future__ import annotations

import pytest

from sinkscope.attention import CATALOG
from tests.families import lab


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOG)
def test_the_lab_model_keeps_the_contract_under_every_operation(name: str) -> None:
    assert lab.check(name).holds
