"""Streams of documents, framed in every way, against a loop over the documents."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.data import Windows
from sinkscope.data.windows import TokenStream, framed

BOS, EOS = 0, 1
documents = st.lists(st.lists(st.integers(2, 40), max_size=6), min_size=1, max_size=8)


def stream_of(texts: list[list[int]], ends: bool = True) -> TokenStream:
    tokens = [token for text in texts for token in [*text, EOS]]
    return TokenStream(np.array(tokens if ends else tokens[:-1], np.uint16))


def naive(texts: list[list[int]], bos: bool, eos: bool) -> tuple[list[int], list[int]]:
    """Tokens, and the number of the document that each belongs to."""
    tokens, numbers = [], []
    for number, text in enumerate(texts):
        whole = [BOS] * bos + text + [EOS] * eos
        tokens += whole
        numbers += [number] * len(whole)
    return tokens, numbers


@given(documents, st.booleans(), st.booleans())
def test_frames_are_those_of_a_loop(texts: list[list[int]], bos: bool, eos: bool):
    found = framed(stream_of(texts), EOS, bos_id=BOS if bos else None, keep_eos=eos, find_starts=True)
    tokens, numbers = naive(texts, bos, eos)
    assert found.tokens.tolist() == tokens
    assert found.tokens.dtype == np.uint16
    assert found.starts.tolist() == [place for place, n in enumerate(numbers) if n not in numbers[:place]]


@given(documents, st.booleans(), st.booleans(), st.booleans(), st.integers(2, 7))
def test_windows_hold_what_a_loop_would_put_there(
    texts: list[list[int]], fixed: bool, bos: bool, eos: bool, context: int
):
    """Every packing: BOS and EOS of documents, a BOS fixed at the window's start, numbers of documents."""
    tokens, numbers = naive(texts, bos, eos)
    size = context - fixed
    if len(tokens) < size:
        return
    stream = framed(stream_of(texts), EOS, bos_id=BOS if bos else None, keep_eos=eos, find_starts=True)
    windows = Windows(stream, context, BOS if fixed else None)
    assert len(windows) == len(tokens) // size
    for index, window in enumerate(windows):
        text, held = (values[index * size : (index + 1) * size] for values in (tokens, numbers))
        places = {number: place for place, number in enumerate(dict.fromkeys(held))}
        assert window["input_ids"].tolist() == [BOS] * fixed + text
        assert window["labels"].tolist() == [BOS] * fixed + text
        assert window["document_ids"].tolist() == [0] * fixed + [places[number] for number in held]


def test_scores_move_with_their_tokens():
    stream = TokenStream(np.array([5, 6, EOS, 7, EOS], np.uint16), scored=np.array([0, 1, 1, 0, 1], np.uint8))
    for bos, eos in itertools.product((None, BOS), (True, False)):
        found = framed(stream, EOS, bos_id=bos, keep_eos=eos)
        scores = dict(zip(stream.tokens.tolist(), stream.scored.tolist(), strict=True)) | {BOS: 0}
        assert found.scored.tolist() == [scores[token] for token in found.tokens.tolist()]


def test_an_unfinished_document_at_the_end_is_one():
    found = framed(stream_of([[5], [6, 7]], ends=False), EOS, bos_id=BOS, find_starts=True)
    assert found.tokens.tolist() == [BOS, 5, EOS, BOS, 6, 7]
    assert found.starts.tolist() == [0, 3]


@pytest.mark.parametrize("changes", [{}, {"keep_eos": True, "bos_id": None}])
def test_what_is_not_asked_for_leaves_the_file_alone(changes: dict):
    stream = stream_of([[5], [6]])
    assert framed(stream, EOS, **changes) is stream
