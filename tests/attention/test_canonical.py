"""Masks that mean the same are one value, and one hash."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sinkscope.attention as zoo
from sinkscope.attention.masks import And, Or, Strict, TokenAxis, canonical
from sinkscope.errors import InputError

CAUSAL, DOCUMENT = zoo.Causal(), zoo.Document()
LEAVES = [
    CAUSAL,
    zoo.Full(),
    zoo.Window(1),
    zoo.Window(2),
    zoo.Window(4),
    zoo.VisiblePrefix(1),
    zoo.VisiblePrefix(3),
    DOCUMENT,
    Strict(),
    zoo.Without((0, 2)),
    zoo.Without((2,)),
    zoo.Alone((3,)),
    zoo.Alone((1, 3)),
]
EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.tuples(st.sampled_from([And, Or]), inner, inner).map(lambda drawn: drawn[0](*drawn[1:])),
    max_leaves=5,
)
TOKENS = TokenAxis(torch.arange(9)[None], torch.tensor([[0, 0, 1, 1, 0, 1, 2, 2, 0]]))


def shown(mask: zoo.Mask) -> torch.Tensor:
    return mask.visible(TOKENS, TOKENS).expand(1, 9, 9)


@given(EXPRESSIONS)
def test_the_same_is_visible_and_once_is_enough(mask):
    one = canonical(mask)
    assert torch.equal(shown(one), shown(mask))
    assert canonical(one) == one


@pytest.mark.slow
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_laws_of_and_and_or_do_not_change_the_identity(a, b, c):
    for one, other in (
        (And(a, b), And(b, a)),
        (Or(a, b), Or(b, a)),
        (And(a, And(b, c)), And(And(a, b), c)),
        (And(a, Or(b, c)), Or(And(a, b), And(a, c))),
        (Or(a, And(a, b)), a),
        (And(a, Or(a, b)), a),
        (And(a, zoo.Full()), a),
        (Or(a, zoo.Full()), zoo.Full()),
    ):
        assert canonical(one) == canonical(other)
        assert hash(canonical(one)) == hash(canonical(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (zoo.Window(4) & CAUSAL, CAUSAL & zoo.Window(4)),
        (CAUSAL & zoo.Window(4) & zoo.Window(9), CAUSAL & zoo.Window(4)),
        (CAUSAL & zoo.Full(), CAUSAL),
        (CAUSAL & CAUSAL, CAUSAL),
        (CAUSAL | zoo.VisiblePrefix(2) | zoo.VisiblePrefix(3), CAUSAL | zoo.VisiblePrefix(3)),
        (zoo.Window(1), CAUSAL & zoo.Window(1) & DOCUMENT),
        (zoo.Without((3, 1, 1)), zoo.Without((1, 3))),
        (zoo.Without((1,)) & zoo.Without((3,)), zoo.Without((1, 3))),
        (zoo.Alone((1,)) & zoo.Alone((0, 3)), zoo.Alone((0, 1, 3))),
        ((CAUSAL & zoo.Window(8)) | (zoo.VisiblePrefix(2) & CAUSAL), CAUSAL & (zoo.VisiblePrefix(2) | zoo.Window(8))),
    ],
)
def test_spellings_of_one_mask(one, other):
    assert zoo.AttentionSpec(mask=one) == zoo.AttentionSpec(mask=other)
    assert zoo.AttentionSpec(mask=one).to_dict() == zoo.AttentionSpec(mask=other).to_dict()


def test_masks_that_differ_stay_different():
    pairs = itertools.combinations([leaf for leaf in LEAVES if leaf != Strict()], 2)
    specs = [zoo.AttentionSpec(mask=one & other) for one, other in pairs]
    for one, other in itertools.combinations(specs, 2):
        assert one != other or torch.equal(shown(one.mask), shown(other.mask))
    assert len(set(specs)) > 40


def test_what_is_usual_stays_as_it_is_written():
    """Hashes of what was stored do not move."""
    for mask in (
        CAUSAL & zoo.Window(4),
        CAUSAL & DOCUMENT,
        CAUSAL | zoo.VisiblePrefix(3),
        CAUSAL & zoo.Window(2) & DOCUMENT,
    ):
        assert canonical(mask) == mask


def test_a_mask_under_which_nothing_is_seen():
    with pytest.raises(InputError, match="no query would see anything"):
        zoo.AttentionSpec(mask=zoo.Window(1) & Strict())


@pytest.mark.parametrize("wrong", [3, None, torch.ones(2, 2, dtype=torch.bool)])
def test_a_mask_combines_with_masks_alone(wrong):
    for combine in (lambda: CAUSAL & wrong, lambda: CAUSAL | wrong):
        with pytest.raises(InputError, match="combines with a mask such as Window") as caught:
            combine()
        assert "\n" not in str(caught.value)
