"""Choices, their words, and what they choose in planted texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import InputError
from sinkscope.sinks import (
    Choice,
    Evidence,
    First,
    Last,
    Measured,
    NothingChosenError,
    Online,
    Outliers,
    Positions,
    ReceivedAttention,
    Rows,
    Spikes,
    TokenIds,
    Tokens,
    parse,
)
from tests.sinks.planted import arrays, causal

ALL = [
    Measured(),
    Measured(0.2),
    Online(),
    Online(0.25),
    First(),
    First(7),
    Last(2),
    Positions(0, 5),
    TokenIds(2, 13),
    Outliers(),
    Outliers(8.5),
    Outliers(20.0, "gate"),
    Outliers(1e20),
    Measured(0.123456789),
    Spikes(3, 17, 2),
]


def evidence(*heads: dict[int, float], tokens: int = 64, rows: int = 2, **more: Any) -> Evidence:
    alpha, visible, uniform = arrays(*heads, seen=causal(tokens), samples=rows)
    received = ReceivedAttention(alpha, visible, uniform, (4,), np.arange(rows), np.zeros(rows, int))
    return Evidence(Rows.plain([tokens] * rows, more.pop("ids", None)), received, **more)


def sums() -> st.SearchStrategy[Choice]:
    def add(parts: list[Choice]) -> Choice:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    return st.lists(st.sampled_from(ALL), min_size=1, max_size=4).map(add)


@given(sums())
def test_words_and_choices_are_the_same_thing(choice: Choice) -> None:
    read = parse(str(choice))
    assert read == choice
    assert str(read) == str(choice)
    assert hash(read) == hash(choice)


@pytest.mark.parametrize(
    "wrong",
    [
        *("mesured", "first:x", "first:0", "positions:", "measured@2", "none+first", "", "outliers:1"),
        *("spikes", "spikes:1", "spikes:1,2,3,4", "outliers:20,gate,up", "outliers:gate"),
    ],
)
def test_words_that_name_nothing_are_refused_in_one_line(wrong: str) -> None:
    with pytest.raises(InputError) as error:
        parse(wrong)
    assert "\n" not in str(error.value)
    assert parse(" none ") is None


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: Measured("position"), lambda: Online(None), lambda: First("4"), lambda: Last(2.5)),  # type: ignore[arg-type]
        *(lambda: Outliers("20"), lambda: Outliers(float("nan")), lambda: Positions("0"), lambda: TokenIds(0.5)),  # type: ignore[arg-type]
        *(lambda: Spikes("1", 0), lambda: Spikes(0, 0.5), lambda: Spikes(0, 0, True)),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_another_type_are_refused_when_written(make: Callable[[], Choice]) -> None:
    with pytest.raises(InputError):
        make()


def test_measured_sinks_are_positions_that_hold_for_every_text() -> None:
    known = evidence({0: 0.9}, {31: 0.9}, {62: 0.9})
    tokens = Measured().resolve(known)
    assert tokens.rows is None
    assert tokens.positions == (0, 31)
    assert tokens.layer(4).shape[:2] == (1, 3)
    other = tokens.on(Rows.plain([40, 8]))
    assert other.any_head().sum(-1).tolist() == [2, 1]


def test_measured_by_row_reads_each_text() -> None:
    known = evidence({}, rows=4)
    assert known.received is not None
    known.received.received[1] = arrays({12: 0.9}, seen=causal(64))[0][0]
    tokens = Measured(by="row").resolve(known)
    assert np.argwhere(tokens.any_head()).tolist() == [[1, 12]]
    with pytest.raises(NothingChosenError, match=r"the most is 0\.2\d\d, at position 12, .* In 1 of them some token"):
        Measured().resolve(known)


def test_a_document_in_the_middle_of_a_row_has_its_sink_at_its_own_start() -> None:
    alpha, visible, uniform = arrays({0: 0.9}, seen=causal(20), samples=2)
    rows = Rows(np.array([[*range(20), *range(20)]]), np.array([[0] * 20 + [1] * 20]))
    received = ReceivedAttention(alpha, visible, uniform, (0,), np.array([0, 0]), np.array([0, 20]))
    assert np.flatnonzero(Measured(by="row").resolve(Evidence(rows, received)).any_head()[0]).tolist() == [0, 20]
    assert np.flatnonzero(Measured().resolve(Evidence(rows, received)).on(rows).any_head()[0]).tolist() == [0, 20]


def test_where_nothing_is_a_sink_the_nearest_token_and_the_slots_are_named() -> None:
    alpha, visible, uniform = arrays({9: 0.25}, seen=causal(64))
    known = ReceivedAttention(alpha, visible, uniform, (0,), np.array([3]), np.array([0]), slots=0.4)
    with pytest.raises(NothingChosenError, match=r"0\.250, at position 9, .*slots take 40 %"):
        Measured().of(known)
    with pytest.raises(NothingChosenError, match=r"0\.250, at position 9 of text 3"):
        Measured(by="row").of(known)
    short = ReceivedAttention(*arrays({0: 0.9}, seen=causal(3)), (0,), np.array([0]), np.array([0]))
    with pytest.raises(NothingChosenError, match=r"0\.933, at position 0, .* uniform attention gives 0\.611"):
        Measured().of(short)


def test_first_positions_and_ids_are_told_by_a_pass() -> None:
    order = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]])
    ids = torch.tensor([[7, 1, 1, 7, 2], [7, 3, 3, 7, 0]])
    real = torch.tensor([[True] * 5, [True] * 4 + [False]])
    assert First(1).places(order, ids, real).tolist() == [[1, 0, 0, 1, 0], [1, 0, 0, 0, 0]]
    assert Positions(1, 3).places(order, ids, real).tolist() == [[0, 1, 0, 0, 1], [0, 1, 0, 1, 0]]
    assert (First(1) + TokenIds(3)).places(order, ids, real).tolist() == [[1, 0, 0, 1, 0], [1, 1, 1, 0, 0]]
    for choice in (Measured(), Online(), Outliers(), Spikes(0, 0), First() + Measured()):
        with pytest.raises(InputError, match="find_tokens"):
            choice.places(order, ids, real)


def test_outliers_are_measured_in_medians_of_their_document() -> None:
    size = np.ones((2, 64))
    size[0, 5], size[1, 6] = 30.0, 19.0
    known = evidence({0: 0.9}, peaks={"down": (size, size / 2)})
    assert np.argwhere(Outliers().resolve(known).any_head()).tolist() == [[0, 5]]
    assert np.argwhere((Measured() + Outliers()).resolve(known).any_head()).tolist() == [[0, 0], [0, 5], [1, 0]]
    with pytest.raises(NothingChosenError, match=r"30\.0 medians"):
        Outliers(31.0).resolve(known)
    with pytest.raises(InputError, match="find_tokens"):
        Outliers(site="up").resolve(known)


def test_last_tokens_and_spikes_are_of_each_document() -> None:
    rows = Rows(np.array([[0, 1, 2, 3, 0, 1, -1], [0, 1, 2, 3, 4, 5, 6]]), np.array([[0, 0, 0, 0, 1, 1, 1], [0] * 7]))
    assert np.argwhere(Last(2).resolve(Evidence(rows)).any_head()).tolist() == [
        [0, 2],
        [0, 3],
        [0, 4],
        [0, 5],
        [1, 5],
        [1, 6],
    ]
    size = np.array([[1, 5, 1, 1, 2, 3, 9.0], [1, 1, 8, 1, 1, 1, 1.0]])
    found = Spikes(2, 3).resolve(Evidence(rows, channels={(2, 3): size}))
    assert np.argwhere(found.any_head()).tolist() == [[0, 1], [0, 5], [1, 2]]


@pytest.mark.parametrize(
    "choice", [Measured(), Measured(by="row"), First(3), Positions(2, 9), Last(3), TokenIds(5), Measured() + Last(2)]
)
def test_random_tokens_match_what_they_are_the_control_of(choice: Choice) -> None:
    ids = np.random.default_rng(0).integers(0, 9, (2, 64))
    known = evidence({0: 0.9, 3: 0.09}, {3: 0.8}, ids=ids)
    tokens = choice.resolve(known).on(known.rows)
    drawn = tokens.random(np.random.default_rng(1))
    assert (drawn.mask.sum(-1) == tokens.mask.sum(-1)).all()  # in every row, layer and head
    assert (drawn.any_head().sum(-1) == tokens.any_head().sum(-1)).all()
    assert not (drawn.any_head() & tokens.any_head()).any()
    enough = known.rows.counted
    assert ((drawn.any_head() & enough).sum(-1) == (tokens.any_head() & enough).sum(-1)).all()
    again = tokens.random(np.random.default_rng(2))
    assert not np.array_equal(again.mask, drawn.mask)
    assert not np.array_equal(drawn.any_head()[0], drawn.any_head()[1])  # drawn anew per text


def test_random_tokens_are_drawn_among_those_that_are_free() -> None:
    rows = Rows.plain([40, 40])
    free = np.zeros((2, 40), bool)
    free[:, 10:12] = True
    drawn = First(2).resolve(Evidence(rows)).random(np.random.default_rng(0), rows, free)
    assert np.argwhere(drawn.any_head()).tolist() == [[0, 10], [0, 11], [1, 10], [1, 11]]
    with pytest.raises(InputError, match="no control: text 0 has 3"):
        First(3).resolve(Evidence(rows)).random(np.random.default_rng(0), rows, free)
    with pytest.raises(InputError, match="give rows"):
        First(3).resolve(Evidence(rows)).random(np.random.default_rng(0))


def test_a_group_of_heads_keeps_what_any_of_them_chooses() -> None:
    tokens = Measured().resolve(evidence({0: 0.9}, {5: 0.9}, {}, {7: 0.9}))
    assert [np.flatnonzero(head).tolist() for head in tokens.kv(2).layer(4)[0]] == [[0, 5], [7]]
    with pytest.raises(InputError, match="groups of 3"):
        tokens.kv(3)
    with pytest.raises(InputError, match="layer 2"):
        Tokens(np.ones((1, 2, 1, 1), bool), layers=(0, 1)).layer(2)


def test_a_table_names_layers_heads_and_positions() -> None:
    table = Measured().resolve(evidence({0: 0.9}, {5: 0.9})).table()
    assert table[["head", "position"]].to_numpy().tolist() == [[0, 0], [1, 5]]


def test_a_repr_is_a_line() -> None:
    mask = np.zeros((1, 2, 3, 12), bool)
    mask[0, 1, 0, [0, 5]] = mask[0, 1, 1, 0] = True
    assert repr(Tokens(mask, chosen_by="measured")) == "Tokens(measured: positions 0, 5, 2 of 6 heads, for any text)"
    assert "positions none" in repr(Tokens(np.zeros((1, 1, 1, 4), bool)))
