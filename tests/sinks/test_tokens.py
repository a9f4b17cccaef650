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
