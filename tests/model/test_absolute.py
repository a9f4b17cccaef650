"""Positions added to the embeddings."""

from __future__ import annotations

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.model.positions import LearnedTable, PositionScheme, Sinusoidal, sinusoids


def test_sinusoids_are_concatenated_halves():
    """Row 0 is [0 … 0 | 1 … 1] (the paper's code)."""
    table = sinusoids(torch.arange(50), 12)
    assert table[0].tolist() == [0.0] * 6 + [1.0] * 6
    for channel in range(6):
        angle = torch.arange(50) * 10000.0 ** (-2 * channel / 12)
        torch.testing.assert_close(table[:, channel], angle.sin())
        torch.testing.assert_close(table[:, 6 + channel], angle.cos())


def test_sinusoids_are_added_unscaled():
    hidden, positions = torch.randn(2, 5, 8), torch.tensor([[0, 1, 2, 3, 4], [3, 0, 1, 2, 3]])
    torch.testing.assert_close(Sinusoidal(8).embed(hidden, positions), hidden + sinusoids(positions, 8))
    with pytest.raises(InputError, match="even hidden_size, got 7"):
        Sinusoidal(7)


def test_a_learned_table_is_added_and_ends():
    scheme, hidden = LearnedTable(6, 8), torch.randn(2, 5, 8)
    positions = torch.tensor([[1, 2, 3, 4, 5]])
    torch.testing.assert_close(scheme.embed(hidden, positions), hidden + scheme.table.weight[1:])
    with pytest.raises(InputError, match=r"position 6.*end at 5"):
        scheme.embed(hidden, positions + 1)


def test_swapping_learned_positions_swaps_rows():
    """With the same token everywhere, a swap permutes rows and a replacement makes two equal."""
    scheme, hidden = LearnedTable(6, 8), torch.randn(1, 1, 8).expand(1, 6, 8)
    positions = torch.arange(6)[None]
    before = scheme.embed(hidden, positions)
    with torch.no_grad():
        scheme.table.weight[[0, 3]] = scheme.table.weight[[3, 0]]
    assert torch.equal(scheme.embed(hidden, positions), before[:, [3, 1, 2, 0, 4, 5]])
    with torch.no_grad():
        scheme.table.weight[0] = scheme.table.weight[3]
    after = scheme.embed(hidden, positions)
    assert torch.equal(after[:, 0], after[:, 3])


def test_the_base_is_no_scheme_at_all():
    hidden = torch.randn(1, 3, 4)
    assert PositionScheme().embed(hidden, torch.arange(3)[None]) is hidden
    assert not list(PositionScheme().parameters())
