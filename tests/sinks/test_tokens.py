"""Chosen tokens, from real tokens to the columns of padded inputs."""

from __future__ import annotations

import numpy as np
import pytest

from sinkscope.errors import InputError
from sinkscope.sinks import Rows, Tokens


@pytest.mark.parametrize("left", [True, False])
def test_tokens_over_the_columns_of_padded_texts(left: bool) -> None:
    """A mask by real tokens and one by columns name the same ids."""
    lengths, width = [3, 5, 4], 5
    mask = np.zeros((3, width), dtype=bool)
    for row, length in enumerate(lengths):
        mask[row, width - length :] = True
    mask = mask if left else mask[:, ::-1]
    ids = np.where(mask, np.arange(15).reshape(3, 5), -1)
    compact = np.full((3, width), -1)
    for row, length in enumerate(lengths):
        compact[row, :length] = ids[row][mask[row]]
    chosen = (compact % 3 == 1) & (compact >= 0)
    tokens = Tokens(chosen[:, None, None], Rows.plain(lengths))
    assert tokens.columns(mask).tolist() == ((ids % 3 == 1) & mask).tolist()
    first = Tokens(np.ones((1, 1, 1, 2), dtype=bool))  # of any text
    assert first.columns(mask).sum(1).tolist() == [2, 2, 2]
    assert [ids[row][first.columns(mask)[row]].tolist() for row in range(3)] == compact[:, :2].tolist()
    with pytest.raises(InputError, match="other numbers"):
        tokens.columns(mask[:, 1:])


def test_texts_are_the_same_however_wide_they_are_padded() -> None:
    lengths, ids = [3, 4], np.zeros((2, 6), dtype=int)
    narrow = Rows.plain(lengths)
    wide = Rows(np.pad(narrow.order, ((0, 0), (0, 2)), constant_values=-1), ids, ids)
    tokens = Tokens(np.array([[False, True, False, False], [False, False, False, True]])[:, None, None], narrow)
    there = tokens.on(wide)
    assert [np.flatnonzero(row).tolist() for row in there.any_head()] == [[1], [3]]
    assert there.mask.shape[-1] == 6
    assert there.on(narrow).any_head().tolist() == tokens.any_head().tolist()
    assert (tokens | there).count() == (there | tokens).count() == 1
    assert tokens.random(np.random.default_rng(0), wide).count() == 1
    for other in (Rows.plain([3, 5]), Rows.plain([3, 3]), Rows.plain([3, 4, 1])):
        with pytest.raises(InputError, match="other texts"):
            tokens.on(other)
