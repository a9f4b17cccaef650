"""The rule on planted attention: where a sink can be, and what only looks like one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.sinks import by_id, by_position, by_row, chosen, counted, exceeds
from tests.sinks.planted import arrays, causal


def positions(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(mask.reshape(-1, mask.shape[-1]).any(0)).tolist()


@pytest.mark.parametrize("place", [0, 1, 31, 32, 33, 47])
def test_a_sink_is_found_wherever_seventeen_queries_see_it(place: int) -> None:
    planted = arrays({place: 0.9}, seen=causal(64))
    assert positions(by_row(*planted)) == [place]
    assert positions(by_position(*planted)) == [place]


@pytest.mark.parametrize("place", [48, 61, 63])
def test_a_token_that_sixteen_queries_or_fewer_see_is_none(place: int) -> None:
    planted = arrays({place: 0.95}, seen=causal(64))
    assert planted[0][0, 0, 0, place] > 0.9
    assert positions(by_row(*planted)) == []


@pytest.mark.parametrize("tokens", [8, 16, 17, 32])
def test_short_texts_need_twice_what_uniform_attention_gives(tokens: int) -> None:
    uniform = float((1 / np.arange(1, tokens + 1)).mean())
    flat = arrays({}, seen=causal(tokens))
    assert flat[2][0, 0, 0] == pytest.approx(uniform)
    assert positions(by_row(*flat)) == []
    assert positions(by_row(*arrays({0: 0.9}, seen=causal(tokens)))) == [0]
    nearly = flat[0].copy()
    nearly[..., 0] = 2 * uniform - 1e-6
    assert positions(by_row(nearly, *flat[1:])) == []


def test_position_0_of_sixteen_tokens_can_be_a_sink_and_the_last_of_64_can_not() -> None:
    assert counted(np.array([[[16.0, 15.0]]]))[0, 0].tolist() == [True, False]
    assert not counted(causal(64).sum(0).astype(float)[None, None])[0, 0, 61:].any()


@pytest.mark.parametrize("window", [4, 8, 40])
def test_in_a_window_a_token_competes_with_those_that_it_is_seen_with(window: int) -> None:
    seen = causal(64, window)
    assert positions(by_row(*arrays({}, seen=seen))) == []
    middle = 20
    assert positions(by_row(*arrays({middle: 0.9}, seen=seen))) == [middle]
    # The last ones are seen by fewer queries than the window holds.
    assert positions(by_row(*arrays({62: 0.9}, seen=seen))) == []


def test_position_0_of_a_windowed_layer_can_be_a_sink_at_any_length() -> None:
    seen = causal(400, 32)
    planted = arrays({0: 0.6}, seen=seen)
    assert planted[0][0, 0, 0, 0] > 0.6  # of the 32 queries that see it
    assert positions(by_row(*planted)) == [0]


def test_under_an_all_visible_mask_the_later_half_has_sinks_too() -> None:
    assert positions(by_row(*arrays({60: 0.9}, seen=np.ones((64, 64), bool)))) == [60]


def test_two_sinks_share_attention_and_both_are_found() -> None:
    assert positions(by_row(*arrays({0: 0.45, 20: 0.45}, seen=causal(64)))) == [0, 20]


def test_heads_that_disagree_keep_their_own() -> None:
    mask = by_row(*arrays({0: 0.9}, {5: 0.9}, {}, seen=causal(64)))
    assert [np.flatnonzero(head).tolist() for head in mask[0, 0]] == [[0], [5], []]


def test_a_sink_of_one_text_is_its_own_and_no_position_of_all() -> None:
    alpha, visible, uniform = arrays({}, seen=causal(64), samples=4)
    alpha[2] = arrays({9: 0.9}, seen=causal(64))[0][0]
    assert np.argwhere(by_row(alpha, visible, uniform)).tolist() == [[2, 0, 0, 9]]
    assert positions(by_position(alpha, visible, uniform)) == []


def test_the_mean_over_texts_is_over_those_in_which_enough_queries_see_the_position() -> None:
    alpha, visible, uniform = arrays({10: 0.5}, seen=causal(64), samples=3)
    # Padding: a text of 20 tokens, in which 10 queries see position 10, too few to count.
    short = arrays({}, seen=causal(20))
    alpha[2, ..., :20], visible[2, ..., :20], uniform[2, ..., :20] = (part[0] for part in short)
    alpha[2, ..., 20:], visible[2, ..., 20:], uniform[2, ..., 20:] = np.nan, 0, np.nan
    assert positions(by_position(alpha, visible, uniform)) == [10]
    # Where most texts are that short, the one long text does not decide.
    for sample in (0, 1):
        alpha[sample], visible[sample], uniform[sample] = alpha[2], visible[2], uniform[2]
    alpha[2], visible[2], uniform[2] = (part[0] for part in arrays({10: 0.5}, seen=causal(64)))
    assert positions(by_position(alpha, visible, uniform)) == []


def test_ids_are_judged_by_all_their_occurrences() -> None:
    alpha, visible, uniform = arrays({7: 0.9}, seen=causal(64))
    ids = np.full((1, 64), 3)
    ids[0, 7] = 11
    ids[0, 63] = 11  # seen by one query: does not count, and is not half of the occurrences
    assert by_id(alpha, visible, uniform, ids) == [11]
    ids[0, 20:40] = 11
    assert by_id(alpha, visible, uniform, ids) == []


def test_the_rule_is_the_same_for_tensors() -> None:
    alpha, visible, uniform = arrays({0: 0.9}, {40: 0.7}, {63: 0.9}, seen=causal(64))
    wide = [torch.from_numpy(part) for part in (alpha, visible[:, :, None], uniform[:, :, None])]
    found = chosen(*wide, wide[1].amax(-1, keepdim=True), 0.3)
    assert torch.equal(found, torch.from_numpy(by_row(alpha, visible, uniform)))


def test_a_rate_counts_by_epsilon_alone_and_strictly() -> None:
    assert exceeds(np.array([0.3, 0.30001, np.nan]), 0.3).tolist()[:2] == [0, 1]
    assert np.isnan(exceeds(np.array([np.nan]), 0.3)[0])
    with pytest.raises(InputError, match="epsilon"):
        exceeds(np.zeros(1), 1.0)
