import pytest
import torch

from sinkscope.probes.contracts.families import FAMILIES


@pytest.fixture
def ids() -> torch.Tensor:
    return FAMILIES["llama"].inputs()["input_ids"]
