"""Masks and what binds them to tokens: padding, documents, fewer queries than keys, and which keys are out of reach."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.functional import DenseVisibility
from sinkscope.attention.masks import describe
from sinkscope.errors import InputError

from .problems import documents

TOKENS = 12
MASKS = {
    "causal": (zoo.Causal(), lambda q, k: k <= q),
    "full": (zoo.Full(), lambda q, k: True),
    "window": (zoo.Causal() & zoo.Window(4), lambda q, k: q - 4 < k <= q),
    "both sides": (zoo.Window(3), lambda q, k: abs(q - k) < 3),
    "prefix": (zoo.Causal() | zoo.VisiblePrefix(3), lambda q, k: k <= q or k < 3),
    "without": (zoo.Causal() & zoo.Without((0, 2)), lambda q, k: k <= q and (k not in (0, 2) or k == q)),
    "alone": (zoo.Causal() & zoo.Alone((3, 6)), lambda q, k: k == q if q in (3, 6) else k <= q),
    "nested": ((zoo.Causal() & zoo.Window(4)) | zoo.VisiblePrefix(1), lambda q, k: q - 4 < k <= q or k < 1),
    "windows": (zoo.Window(6) & (zoo.Causal() & zoo.Window(2)), lambda q, k: q - 2 < k <= q),
}


def expected(name: str, start: int = 0) -> torch.Tensor:
    sees = MASKS[name][1]
    return torch.tensor([[bool(sees(q, k)) for k in range(TOKENS)] for q in range(start, TOKENS)])


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_what_they_say(name):
    mask = MASKS[name][0]
    assert torch.equal(zoo.Visibility.of(mask, TOKENS, TOKENS).dense()[0, 0], expected(name))
    for queries in (1, 5):
        found = zoo.Visibility.of(mask, queries, TOKENS).dense()[0, 0]
        assert torch.equal(found, expected(name, TOKENS - queries))


@pytest.mark.parametrize("name", MASKS)
def test_places_count_real_tokens(name):
    """With padding on either side, the rule applies to places among real tokens; padding neither sees nor is seen."""
    for side in (slice(5, None), slice(0, TOKENS)):
        real = torch.zeros(1, TOKENS + 5, dtype=torch.long)
        real[:, side] = 1
        found = zoo.Visibility.of(MASKS[name][0], TOKENS + 5, TOKENS + 5, attention_mask=real).dense()[0, 0]
        assert torch.equal(found[side, side], expected(name))
        assert found.sum() == expected(name).sum()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("queries", [TOKENS, 5])
def test_what_is_out_of_reach_is_hidden(name, padded, queries):
    """No key outside `reach` is visible, however rows are cut; what a query sees is counted right."""
    real = torch.ones(2, TOKENS, dtype=torch.long)
    real[0, :3] = 0
    mask = MASKS[name][0] & zoo.Document()
    bound = zoo.Visibility.of(
        mask if padded else MASKS[name][0],
        queries,
        TOKENS,
        attention_mask=real if padded else None,
        documents=documents(TOKENS) if padded else None,
    )
    whole = bound.dense()
    for start in range(0, queries, 3):
        rows = slice(start, min(queries, start + 3))
        reach = bound.reach(rows)
        assert torch.equal(bound.upto(reach).dense(rows), whole[:, :, rows, reach])
        assert whole[:, :, rows].sum() == whole[:, :, rows, reach].sum()
    assert torch.equal(bound.counted(), whole.sum(-1, keepdim=True).clamp(min=1).float())


def test_a_causal_square_reaches_no_further_than_its_last_row():
    bound = zoo.Visibility.of(zoo.Causal(), TOKENS, TOKENS)
    assert bound.reach(slice(3, 6)).stop == 6
    assert bound.is_causal_square
    assert not bound.is_full
    assert zoo.Visibility.of(zoo.Full(), TOKENS, TOKENS).is_full


@pytest.mark.parametrize("mask", [MASKS["window"][0], MASKS["prefix"][0], zoo.Causal() & zoo.Document()])
def test_only_the_plain_triangle_is_a_causal_square(mask):
    bound = zoo.Visibility.of(mask, TOKENS, TOKENS, documents=documents(TOKENS))
    assert not bound.is_causal_square
    assert not zoo.Visibility.of(zoo.Causal(), 5, TOKENS).is_causal_square
    real = torch.ones(2, TOKENS, dtype=torch.long)
    assert not zoo.Visibility.of(zoo.Causal(), TOKENS, TOKENS, attention_mask=real).is_causal_square


def test_a_written_mask_holds_for_each_sample():
    q = torch.randn(2, 2, 4, 8)
    allowed = torch.ones(2, 1, 4, 4, dtype=torch.bool).tril()
    allowed[1, :, :, 0] = False
    for path in ("reference", "fast", "chunked"):
        found = zoo.attend(q, q, q, "softmax", mask=allowed, path=path).output
        plain = zoo.attend(q, q, q, "softmax", path="reference").output
        torch.testing.assert_close(found[0], plain[0])
        assert found[1, :, 0].abs().sum() == 0
        part = zoo.attend(q[:, :, 1:], q[:, :, 1:], q[:, :, 1:], "softmax", path="reference").output
        torch.testing.assert_close(found[1, :, 1:], part[1])


def test_a_written_mask_can_be_narrowed():
    q = torch.zeros(1, 1, TOKENS, 8)
    written = DenseVisibility.out(expected("causal"), q, q)
    assert torch.equal(written.narrowed(zoo.Without((0, 2))).dense()[0, 0], expected("without"))


@pytest.mark.parametrize(("mask", "words"), [(mask, describe(mask)) for mask, _ in MASKS.values()])
def test_masks_in_words(mask, words):
    assert words
    assert all(name in words for name in ("causal",) if "Causal" in repr(mask))


def test_places_in_documents():
    assert documents(8).tolist() == [[0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2]]
    bound = zoo.Visibility.of(zoo.Document(), 8, 8, documents=documents(8))
    assert bound.key.within_documents().tolist() == [[0, 1, 0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4, 0, 1]]
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0]] * 2)
    padded = zoo.Visibility.of(zoo.Document(), 8, 8, documents=documents(8), attention_mask=real).key
    assert padded.within_documents()[0, 2:7].tolist() == [0, 1, 2, 0, 1]
    assert zoo.TokenAxis.plain(3).within_documents().tolist() == [[0, 1, 2]]


def test_a_document_mask_needs_documents():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match="document numbers"):
        zoo.attend(q, q, q, "softmax", mask=zoo.Causal() & zoo.Document())


def test_more_queries_than_keys_are_no_continuation():
    with pytest.raises(InputError, match="3 queries for 2 keys"):
        zoo.Visibility.of(zoo.Causal(), 3, 2)
    assert zoo.Visibility.of(zoo.Full(), 3, 2).dense().shape == (1, 1, 3, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: zoo.Window(0), "greater than or equal to 1"),
        (lambda: zoo.Window(-3), "greater than or equal to 1"),
        (lambda: zoo.VisiblePrefix(0), "greater than or equal to 1"),
        (lambda: zoo.Without(()), "at least 1 item"),
        (lambda: zoo.Alone((-1,)), "greater than or equal to 0"),
    ],
)
def test_masks_of_nothing_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
