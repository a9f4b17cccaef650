from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.data import FixedToken, RandomTokens, SomeWindows, TrainingOrder, Windows
from sinkscope.data.windows import TokenStream, framed
from sinkscope.errors import InputError

BOS = 0
token_streams = st.lists(st.integers(1, 65535), min_size=8, max_size=100).map(lambda ids: np.array(ids, np.uint16))


@given(token_streams, st.integers(2, 8), st.booleans())
def test_the_text_of_all_windows_is_a_prefix_of_the_tokens(tokens: np.ndarray, context: int, bos: bool):
    windows = Windows(tokens, context, BOS if bos else None)
    items = [windows[index] for index in range(len(windows))]
    text = torch.cat([item["input_ids"][bos:] for item in items]).numpy()
    assert np.array_equal(text, tokens[: len(text)])
    assert len(tokens) - len(text) < context - bos
    for item in items:
        assert item["input_ids"].shape == (context,)
        assert item["input_ids"].dtype == torch.long
        assert torch.equal(item["input_ids"], item["labels"])
        assert not bos or item["input_ids"][0] == BOS


def test_windows_end_like_a_sequence():
    windows = Windows(np.arange(20, dtype=np.uint16), 5, BOS)
    assert len(windows) == len(list(windows)) == 5
    for index in (5, -1):
        with pytest.raises(IndexError):
            windows[index]


def test_a_short_text_is_told_with_both_numbers():
    assert len(Windows(np.ones(7, np.uint16), 8, BOS)) == 1
    with pytest.raises(InputError, match="the notes has 6 tokens, fewer than the 7 that one window of context 8 takes"):
        Windows(np.ones(6, np.uint16), 8, BOS, what="the notes")
    with pytest.raises(InputError, match="context 1 is too short"):
        Windows(np.ones(6, np.uint16), 1)


def test_a_fixed_token_overwrites_the_inputs_and_not_the_labels():
    tokens = np.arange(10, 30, dtype=np.uint16)
    plain = Windows(tokens, 5)
    fixed = Windows(tokens, 5, interventions=[FixedToken(position=2, token=1)], vocabulary=30)
    assert len(fixed) == len(plain)
    for before, after in zip(plain, fixed, strict=True):
        assert torch.equal(after["labels"], before["labels"])
        assert after["input_ids"][2] == 1
        others = torch.tensor([0, 1, 3, 4])
        assert torch.equal(after["input_ids"][others], before["input_ids"][others])


def test_random_tokens_are_uniform_and_belong_to_the_window_and_the_seed():
    def cut(seed: int) -> torch.Tensor:
        random = RandomTokens(start=1, stop=41)
        windows = Windows(np.full(21_000, 9, np.uint16), 42, interventions=[random], vocabulary=20, seed=seed)
        return torch.stack([item["input_ids"] for item in windows])

    drawn = cut(0)
    assert (drawn[:, [0, 41]] == 9).all()
    counts = drawn[:, 1:41].flatten().bincount(minlength=20).double()
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi squared, 19 degrees of freedom: p = 1e-4
    assert torch.equal(drawn, cut(0))
    assert not torch.equal(drawn, cut(1))


@pytest.mark.parametrize(
    ("intervention", "vocabulary", "reason"),
    [
        (FixedToken(position=5, token=1), 30, "position 5 lies outside a window of 5"),
        (RandomTokens(start=4, stop=6), 30, "position 5 lies outside a window of 5"),
        (FixedToken(position=0, token=30), 30, "token 30 is outside the vocabulary of 30"),
        (RandomTokens(start=0, stop=1), None, "the size of the vocabulary is not given"),
    ],
)
def test_interventions_that_have_no_place(intervention, vocabulary, reason: str):
    with pytest.raises(InputError, match=reason):
        Windows(np.ones(20, np.uint16), 5, interventions=[intervention], vocabulary=vocabulary)


def numbered(count: int) -> Windows:
    """Windows that hold their own number."""
    return Windows(np.repeat(np.arange(count, dtype=np.uint16), 2), 2)


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 15), st.integers(0, 5))
def test_every_pass_is_a_permutation_and_every_item_stands_alone(count: int, batch: int, steps: int, seed: int):
    order = TrainingOrder(numbered(count), batch, steps, seed)
    seen = [int(item["input_ids"][0]) for item in order]
    assert len(seen) == len(order) == batch * steps
    for start in range(0, len(seen) - count + 1, count):
        assert sorted(seen[start : start + count]) == list(range(count))
    assert len(set(seen[len(seen) // count * count :])) == len(seen) % count
    again = TrainingOrder(numbered(count), batch, steps, seed)
    assert [again.index(item) for item in reversed(range(len(again)))] == seen[::-1]


def test_passes_and_seeds_differ_and_a_longer_run_begins_alike():
    seen = [
        [order.index(item) for item in range(100)]
        for order in (
            TrainingOrder(numbered(50), 10, 10, 0),
            TrainingOrder(numbered(50), 10, 10, 1),
            TrainingOrder(numbered(50), 5, 40, 0),
        )
    ]
    assert seen[0][:50] != seen[0][50:]
    assert seen[0] != seen[1]
    assert seen[0] == seen[2]


def test_an_order_has_an_end_and_a_size():
    order = TrainingOrder(numbered(3), 2, 2, 0)
    for item in (4, -1):
        with pytest.raises(IndexError):
            order[item]
    with pytest.raises(InputError, match="batch_size 0"):
        TrainingOrder(numbered(3), 0, 2, 0)


def test_documents_are_numbered_by_their_starts():
    eos = 9
    tokens = np.array([1, 2, 9, 3, 9, 4, 5, 6, 7, 8], np.uint16)
    stream = TokenStream(tokens, starts=np.array([0, 3, 5]))
    (window,) = Windows(stream, 10)
    assert window["document_ids"].tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    with_bos, second = Windows(stream, 6, eos)  # the BOS may be the EOS
    assert with_bos["input_ids"].tolist() == [9, 1, 2, 9, 3, 9]
    assert with_bos["document_ids"].tolist() == [0, 0, 0, 0, 1, 1]
    assert second["document_ids"].tolist() == [0] * 6  # the document it begins in is its first
    assert "document_ids" not in Windows(tokens, 10)[0]


def test_only_scored_tokens_have_labels():
    stream = TokenStream(np.arange(10, 18, dtype=np.uint16), scored=np.array([0, 1, 1, 0, 0, 0, 1, 1], np.uint8))
    first, second = Windows(stream, 5, BOS, interventions=[FixedToken(position=2, token=3)], vocabulary=30)
    assert first["input_ids"].tolist() == [BOS, 10, 3, 12, 13]
    assert first["labels"].tolist() == [-100, -100, 11, 12, -100]
    assert second["labels"].tolist() == [-100, -100, -100, 16, 17]
    assert Windows(stream, 4)[0]["labels"].tolist() == [-100, 11, 12, -100]


def test_a_share_of_the_windows_is_part_of_a_larger_one():
    windows = Windows(np.arange(1, 401, dtype=np.uint16), 4)
    first = {SomeWindows(windows, share, seed=3)[i]["input_ids"][0].item() for share in (0.1,) for i in range(10)}
    more = SomeWindows(windows, 0.5, seed=3)
    assert (len(SomeWindows(windows, 0.1, seed=3)), len(more)) == (10, 50)
    assert len(first) == 10
    assert first < {more[i]["input_ids"][0].item() for i in range(50)}
    assert first != {SomeWindows(windows, 0.1, seed=4)[i]["input_ids"][0].item() for i in range(10)}
    order = TrainingOrder(SomeWindows(windows, 0.1, seed=3), 4, 5, seed=0)
    assert {order[i]["input_ids"][0].item() for i in range(20)} == first


def test_random_tokens_are_the_text_that_is_predicted():
    """The paper replaces them in its data: inputs and labels agree; a fixed token leaves the labels as they were."""
    tokens = np.arange(100, 400)
    plain = Windows(tokens, 20)
    drawn = Windows(tokens, 20, interventions=[RandomTokens(start=2, stop=6)], vocabulary=50)
    fixed = Windows(tokens, 20, interventions=[FixedToken(position=3, token=7)], vocabulary=50)
    for index in range(len(plain)):
        assert torch.equal(drawn[index]["labels"], drawn[index]["input_ids"])
        assert bool((drawn[index]["labels"][2:6] < 50).all())
        assert torch.equal(drawn[index]["labels"][6:], plain[index]["labels"][6:])
        assert torch.equal(fixed[index]["labels"], plain[index]["labels"])
        assert fixed[index]["input_ids"][3] == 7


def test_training_and_validation_draw_their_own_random_tokens():
    tokens = np.arange(100, 4100)
    draws = {
        part: torch.stack([window["input_ids"][:8] for window in Windows(
            tokens, 20, interventions=[RandomTokens(start=0, stop=8)], vocabulary=1000, part=part
        )])
        for part in ("train", "validation", "train 0", "train 1")
    }  # fmt: skip
    for one, other in itertools.combinations(draws.values(), 2):
        assert (one == other).float().mean() < 0.01  # 1600 draws from 1000 tokens: one agrees by chance in a thousand


def test_a_document_s_first_token_may_be_left_unscored():
    """Wherever a document begins, and nowhere else; a BOS before documents is that token."""
    stream = TokenStream(np.array([5, 6, 1, 7, 8, 9, 1, 4, 1]))  # EOS is 1
    for bos, first in ((None, [0, 3, 7]), (0, [0, 4, 9])):
        kept = framed(stream, 1, bos_id=bos, score_first=False)
        assert np.flatnonzero(kept.scored == 0).tolist() == first
        assert kept.starts is None
        labels = torch.cat([window["labels"] for window in Windows(kept, 3)])
        assert (labels == -100).nonzero().flatten().tolist() == first
    spoken = TokenStream(stream.tokens, scored=np.array([0, 1, 1, 0, 0, 1, 1, 1, 1], np.uint8))
    kept = framed(spoken, 1, score_first=False, find_starts=True)
    assert kept.scored.tolist() == [0, 1, 1, 0, 0, 1, 1, 0, 1]
    assert kept.starts.tolist() == [0, 3, 7]
    assert spoken.scored.tolist() == [0, 1, 1, 0, 0, 1, 1, 1, 1]
