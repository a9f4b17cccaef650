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
    """A measurement of an encoder-decoder whose two stacks read different tokens; tests must not change it."""
    family = FAMILIES["t5"]
    return measure(family.build(), family.inputs())
