"""Results do not depend on how many rows and samples a chunk has, windows and padding included."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch

from sinkscope.measurement import measure
from sinkscope.measurement.calls import call
from tests.measurement.conftest import ADDITIVE, build

# Several chunks of rows in 24 tokens; windows of 5, so that columns of a chunk begin beyond the first.
FAMILIES = ["llama", "mistral", "gemma2", "gpt_oss", "bert", "lab:sigmoid", "lab:sink_logit", "lab:differential"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows"), list(product(FAMILIES, (1, 5, 7))))
def test_chunks_of_rows_add_up(
    name: str, rows: int, ids: torch.Tensor, assert_same: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, mask = build(name), torch.ones_like(ids)
    mask[1, 20:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    whole = measure(model, inputs, ADDITIVE)
    monkeypatch.setattr(call, "ROWS", rows)
    monkeypatch.setattr(call, "ELEMENTS", 8 * 24 * 4)
    assert_same(measure(model, inputs, ADDITIVE), whole, 1e-4)
