"""The mask of a call says of each stored key whether its slot is filled, in the form that the host adds or reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sinkscope.caches.layers.slots import SlotsLayer
from sinkscope.caches.masks import by_place, seen_by_one

LOWEST = torch.finfo(torch.float32).min


@pytest.fixture
def layer() -> SlotsLayer:
    """Two heads that store three keys, of which the second has one empty slot, and one further token."""
    layer = SlotsLayer()
    layer.slots.append(
        keys=torch.zeros(1, 2, 4, 8),
        values=torch.zeros(1, 2, 4, 8),
        places=torch.tensor([[[0, 4, 7, 9], [-1, 5, 8, 9]]]),
    )
    layer.whole, layer.gaps, layer.seen = False, True, 10
    return layer


def seen(layer: SlotsLayer, host: str | None, mask: Tensor | None) -> Tensor:
    given = {"query": torch.zeros(1, 4, 1, 8), "key": torch.zeros(1, 2, 4, 8), "attention_mask": mask}
    return by_place(layer, nn.Identity(), host, given)["attention_mask"]


FILLED = torch.tensor([[True] * 4, [True] * 4, [False, True, True, True], [False, True, True, True]])[None, :, None]


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 1, 4, dtype=torch.bool)])
def test_an_empty_slot_is_hidden_in_the_form_of_the_host(layer: SlotsLayer, mask: Tensor | None) -> None:
    assert torch.equal(seen(layer, "sdpa", mask), FILLED)
    addends = torch.zeros(FILLED.shape).masked_fill(~FILLED, LOWEST)
    for host in ("eager", None):  # which add what they are given: True would be a score one higher
        assert torch.equal(seen(layer, host, mask), addends)


@pytest.mark.parametrize("host", ["sdpa", "eager"])
def test_addends_stay_addends(layer: SlotsLayer, host: str) -> None:
    mask = torch.tensor([[[[0.0, LOWEST, 0.0, 0.0]]]])  # of columns that stand for other keys than those stored
    assert torch.equal(seen(layer, host, mask), torch.zeros(FILLED.shape).masked_fill(~FILLED, LOWEST))


def test_one_query_sees_every_slot_or_none_in_the_form_of_the_host() -> None:
    """Of the mask its own column alone counts, which hides all of a row of padding."""
    real = torch.tensor([True, False])
    mask = torch.stack([~real, real], -1)[:, None, None]  # (row, 1, query, column); the first column is of another key
    given = {"query": torch.zeros(2, 4, 1, 8), "key": torch.zeros(2, 2, 3, 8), "attention_mask": mask}
    wanted = real[:, None, None, None].expand(2, 1, 1, 3)
    addends = torch.zeros(wanted.shape).masked_fill(~wanted, LOWEST)
    for host, expected in (("sdpa", wanted), ("eager", addends), (None, addends)):
        assert torch.equal(seen_by_one(nn.Identity(), host, given)["attention_mask"], expected)
    assert seen_by_one(nn.Identity(), "eager", given | {"attention_mask": None})["attention_mask"] is None
