import pytest

from sinkscope.measurements import Measurement
from tests.measurements.planted import measured


@pytest.fixture(scope="session")
def complete() -> Measurement:
    """A measurement with every variable; tests must not change it."""
    return measured()
