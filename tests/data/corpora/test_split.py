from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.data.corpora.corpus import shuffled, split_names
from sinkscope.errors import InputError

names_of_documents = st.lists(st.text("abcdé", min_size=1, max_size=5), min_size=2, max_size=40, unique=True)


@given(names_of_documents, st.floats(0.001, 0.999), st.integers(0, 99))
def test_the_parts_are_disjoint_complete_ordered_and_never_empty(names: list[str], share: float, seed: int):
    split = split_names(names, share, seed)
    assert not set(split.train) & set(split.validation)
    assert sorted(split.train + split.validation) == sorted(names)
    assert list(split.train) == [name for name in names if name in split.train]
    assert split.train
    assert split.validation
    assert abs(len(split.validation) - share * len(names)) <= 1


@given(names_of_documents, st.integers(0, 99), st.randoms())
def test_only_names_and_seed_decide_the_order(names: list[str], seed: int, random):
    again = list(names)
    random.shuffle(again)
    assert shuffled(names, seed) == shuffled(again, seed)


def test_seeds_choose_different_documents():
    names = [f"{index}.txt" for index in range(200)]
    chosen = [set(split_names(names, 0.1, seed).validation) for seed in range(3)]
    assert all(len(part) == 20 for part in chosen)
    assert len(chosen[0] & chosen[1]) < 10
    assert chosen[1] != chosen[2]


@pytest.mark.parametrize("names", [[], ["one"]])
def test_one_document_cannot_be_split(names: list[str]):
    with pytest.raises(InputError, match=f"the corpus has {len(names)} document"):
        split_names(names, 0.5, 0)
