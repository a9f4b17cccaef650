"""Scores of modules with attention of their own."""

from __future__ import annotations

import torch
from torch import nn

from sinkscope.hooks import Computed
from sinkscope.measurement.calls.own import _scoring


def test_a_negative_scale_has_the_tolerance_of_its_size() -> None:
    query, key = 10 * torch.randn(2, 1, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    visible, module = torch.ones(1, 1, 6, 6, dtype=torch.bool), nn.Module()
    module.scale = -0.5  # type: ignore[assignment]
    scores = -0.5 * query @ key.mT
    found = _scoring(module, Computed(query, key, key, query, tuple(range(6)), scores, visible, {}), None)
    assert (found.scaling, found.bias) == (-0.5, None)
