import pytest
import torch
import xarray as xr

from sinkscope.measurement import Measurement
from tests.families.registry import FAMILIES
from tests.measurement.planted import measured, small_dataset


@pytest.fixture(scope="session")
def complete() -> Measurement:
    """A measurement with every variable; tests must not change it."""
    return measured()


@pytest.fixture
def dataset() -> xr.Dataset:
    return small_dataset()


@pytest.fixture
def ids() -> torch.Tensor:
    return FAMILIES["llama"].inputs()["input_ids"]
