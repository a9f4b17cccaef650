import pytest
import torch


@pytest.fixture
def ids() -> torch.Tensor:
    return FAMILIES["llama"].inputs()["input_ids"]
