import pytest
import torch

from tests.families.registry import FAMILIES


@pytest.fixture
def ids() -> torch.Tensor:
    return FAMILIES["llama"].inputs()["input_ids"]
