import pytest

from sinkscope.measurement import Measurement, measure
from tests.families.registry import FAMILIES
from tests.measurement.planted import measured


@pytest.fixture(scope="session")
def complete() -> Measurement:
    """A measurement with every variable; tests must not change it."""
    return measured()


@pytest.fixture(scope="session")
def pair() -> Measurement:
    """Of an encoder-decoder that reads other tokens on each side; tests must not change it."""
    family = FAMILIES["t5"]
    return measure(family.build(), family.inputs())
