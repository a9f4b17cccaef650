"""Where tokens stand: padding, cache, documents, sink tokens, positions of the caller."""

from __future__ import annotations

import pytest
import torch

from sinkscope.attention import Causal, Visibility
from sinkscope.attention.masks import TokenAxis
from sinkscope.errors import InputError
from sinkscope.model.positions import TokenPositions
from sinkscope.model.visibility import bind


def test_padding_does_not_count():
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    positions = TokenPositions.of(Visibility.of(Causal(), 2, 5, attention_mask=real))
    assert positions.key[0, 2:].tolist() == [0, 1, 2]
    assert positions.key[1, :3].tolist() == [0, 1, 2]
    assert torch.equal(positions.query, positions.key[:, 3:])


def test_documents_restart_wherever_their_tokens_stand():
    documents = torch.tensor([[7, 7, 7, 2, 2, 7, 2], [0, 1, 1, 1, 1, 1, 0]])
    positions = TokenPositions.of(Visibility.of(Causal(), 7, 7, documents=documents), restart=True)
    assert positions.key.tolist() == [[0, 1, 2, 0, 1, 3, 2], [0, 0, 1, 2, 3, 4, 1]]
    assert TokenPositions.of(Visibility.of(Causal(), 7, 7, documents=documents)).key.tolist() == [list(range(7))]


def test_documents_with_padding_and_sink_tokens():
    documents = torch.tensor([[5, 5, 5, -1, -1]])
    real = torch.tensor([[0, 1, 1, 1, 1]])
    visibility = bind(Causal(), 7, 7, sinks=2, attention_mask=real, documents=documents)
    key = TokenPositions.of(visibility, sinks=2, restart=True).key
    assert key[0, [0, 1, 3, 4, 5, 6]].tolist() == [-2, -1, 0, 1, 0, 1]


def test_gaps_in_a_document_do_not_count():
    visibility = Visibility.of(
        Causal(), 4, 4, attention_mask=torch.tensor([[1, 0, 1, 1]]), documents=torch.tensor([[3, 3, 3, 3]])
    )
    assert TokenPositions.of(visibility, restart=True).key[0, [0, 2, 3]].tolist() == [0, 1, 2]


def test_ranks_equal_a_count_by_hand():
    document = torch.randint(0, 4, (3, 40))
    expected = [[row[:i].count(number) for i, number in enumerate(row)] for row in document.tolist()]
    assert TokenAxis(torch.arange(40)[None], document).restarted().tolist() == expected


def test_the_callers_positions_hold_for_keys_where_nothing_is_cached():
    given = torch.tensor([[4, 5, 9]])
    positions = TokenPositions.of(bind(Causal(), 5, 5, sinks=2), given, sinks=2).known()
    assert positions.query.tolist() == positions.key.tolist() == [[-2, -1, 4, 5, 9]]
    with pytest.raises(InputError, match=r"position_ids \(1, 3\): expected \(batch or 1, 4\)"):
        TokenPositions.of(Visibility.of(Causal(), 4, 4), given)


def test_the_callers_positions_must_continue_the_cache_where_biases_need_them():
    visibility = Visibility.of(Causal(), 2, 5)
    assert TokenPositions.of(visibility, torch.tensor([[3, 4]])).known().query.tolist() == [[3, 4]]
    with pytest.raises(InputError, match="continue"):
        TokenPositions.of(visibility, torch.tensor([[0, 1]])).known()


def test_padding_may_have_any_position():
    """`generate` writes 0 for padding."""
    visibility = Visibility.of(Causal(), 3, 4, attention_mask=torch.tensor([[0, 0, 1, 1]]))
    assert TokenPositions.of(visibility, torch.tensor([[0, 0, 1]])).known() is not None
