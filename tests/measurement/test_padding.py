"""Padding behind a row: what its queries see is no row of a measurement, also where their operation lets them see."""

from __future__ import annotations

import pytest
import torch

from sinkscope.measurement import AttentionReceived, measure
from sinkscope.model import attach
from tests.families.registry import FAMILIES
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


@pytest.mark.parametrize("family", ["gpt2", "bert", "roberta", "opt", "biogpt", "ctrl", "llama"])
def test_a_row_behind_padding_is_measured_as_it_is_alone(family: str) -> None:
    """Also where positions are learned, which by themselves count columns."""
    model = FAMILIES[family].build()
    ids = torch.randint(5, 30, (1, 9), generator=torch.Generator().manual_seed(0))
    behind = torch.cat([torch.full((1, 4), model.config.pad_token_id), ids], 1)
    mask = (torch.arange(13) >= 4).long()[None]
    alone = measure(model, ids).data
    padded = measure(model, {"input_ids": behind, "attention_mask": mask}).data
    for name in ("attention_received", "hidden_norm"):
        found = padded[name].values[..., : ids.shape[1]]
        torch.testing.assert_close(torch.tensor(found), torch.tensor(alone[name].values), atol=1e-4, rtol=1e-4)
