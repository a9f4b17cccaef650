"""Ranks of keys by place, counted or sorted, are those of a loop."""

from __future__ import annotations

import pytest
import torch

from sinkscope.caches.policies import last_queries


@pytest.mark.parametrize("columns", [0, 8])  # times the slots: 0 sorts, 8 counts
def test_ranks_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(last_queries, "FEW_COLUMNS", columns)
    generator = torch.Generator().manual_seed(0)
    places = torch.stack([torch.randperm(40, generator=generator)[:9] for _ in range(6)]).view(2, 3, 9)
    places[0, 1, 4] = places[1, 2, :2] = -1  # empty
    among = (places >= 0) & (places < 30)
    ranks = last_queries.ranks(places, among, 40)
    for row, head, slot in torch.ones_like(places).nonzero().tolist():
        before = (places[row, head] < places[row, head, slot]) & among[row, head]
        assert ranks[row, head, slot] == (before.sum() if among[row, head, slot] else 9)
