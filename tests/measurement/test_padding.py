"""Padding behind a row: what its queries see is no row of a measurement, also where their operation lets them see."""

from __future__ import annotations

import pytest
import torch

from sinkscope.measurement import AttentionReceived, measure
from sinkscope.model import attach
from tests.measurement.conftest import build


@pytest.mark.parametrize("operation", ["sigmoid", "elu_normalized"])
def test_queries_of_padding_behind_a_row_count_nowhere(operation: str) -> None:
    model = build("llama")
    attach(model, operation)
    ids = torch.randint(3, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    alone = measure(model, ids[:, :8], [AttentionReceived()]).data["attention_received"].values
    mask = (torch.arange(12) < 8).long()[None]
    padded = measure(model, {"input_ids": ids, "attention_mask": mask}, [AttentionReceived()])
    found = padded.data["attention_received"].values
    assert abs(found[..., :8] - alone).max() < 1e-5
