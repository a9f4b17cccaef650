import pytest

from sinkscope.probes import Measurement
from tests.report.observatory.planted import measured


@pytest.fixture(scope="session")
def complete() -> Measurement:
    """A measurement with every variable; tests must not change it."""
    return measured()
