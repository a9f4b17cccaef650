import pytest

from sinkscope.measurement import Measurement
from tests.measurement.planted import measured


@pytest.fixture(scope="session")
def complete() -> Measurement:
    """A measurement with every variable; tests must not change it."""
    return measured()
