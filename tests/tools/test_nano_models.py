"""The recipes of the shipped encoder and hybrid."""

from __future__ import annotations

import pytest

from sinkscope.errors import InputError
from tools.nano_models import KINDS, SIZES, train_nano


def test_both_have_the_sizes_of_nano() -> None:
    assert all(recipe.model == SIZES for _, recipe in KINDS.values())
    assert {recipe.batch_size * recipe.context for _, recipe in KINDS.values()} == {32 * 128}


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'encoder'"):
        train_nano("encodr")
