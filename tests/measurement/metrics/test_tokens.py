"""Which tokens are sinks: planted ones are found, with their text, kind and place."""

from __future__ import annotations

import numpy as np
import pytest

from sinkscope.measurement import metrics

TEXTS = {1: "<bos>", 2: ".", 3: "Ġthe", 4: "Ċ", 5: "[SEP]"}
IDS = np.array([[1, 3, 2, 3, 3, 3], [1, 2, 3, 3, 4, 3]])


def planted() -> np.ndarray:
    """(2 samples, 2 layers, 2 heads, 6): the BOS in all heads, the full stop in one of four."""
    received = np.full((2, 2, 2, 6), 0.05)
    received[..., 0] = 0.6
    received[0, 1, 0, 2] = received[1, 1, 0, 1] = 0.4
    return received


def test_planted_sinks_are_found_with_their_numbers() -> None:
    table = metrics.sinks_by_token(planted(), IDS, np.ones((2, 6), bool), TEXTS, 0.3)
    assert table["token"].tolist() == ["<bos>", "."]
    bos, stop = table.to_dict("records")
    assert (bos["sinks"], bos["occurrences"], bos["heads"], bos["alpha"]) == (2, 2, 100.0, 0.6)
    assert (stop["sinks"], stop["share"], stop["heads"], stop["first"], stop["last"]) == (2, 100.0, 25.0, 1, 2)


def test_the_least_share_of_heads_counts() -> None:
    table = metrics.sinks_by_token(planted(), IDS, np.ones((2, 6), bool), TEXTS, 0.3, least=25.0)
    assert table["token"].tolist() == ["<bos>"]


def test_places_that_are_not_counted_and_unmeasured_ones_are_no_sinks() -> None:
    received, counted = planted(), np.ones((2, 6), bool)
    counted[:, 0] = False
    received[0, :, :, 2] = np.nan
    table = metrics.sinks_by_token(received, IDS, counted, TEXTS, 0.3)
    assert table[["token", "sinks", "occurrences"]].values.tolist() == [[".", 1, 1]]


def test_without_a_sink_the_table_is_empty() -> None:
    table = metrics.sinks_by_token(np.full((2, 2, 2, 6), 0.1), IDS, np.ones((2, 6), bool), TEXTS, 0.3)
    assert table.empty
    assert "token" in table


def test_half_of_the_queries_must_see_a_position() -> None:
    seen = np.array([[6, 5, 4, 3, 2, 1], [3, 2, 1, *[np.nan] * 3]])
    assert metrics.comparable(seen, np.array([6, 3])).sum(1).tolist() == [3, 2]
    assert metrics.comparable(np.where(np.isnan(seen), np.nan, 6), np.array([6, 6])).sum(1).tolist() == [6, 3]


@pytest.mark.parametrize(
    ("text", "special", "kind"),
    [
        ("[SEP]", True, "[SEP]"),
        ("Ġ.", False, "punctuation"),
        ("。", False, "punctuation"),
        ("Ċ", False, "line end"),
        ("ĠĠ", False, "space"),
        ("Ġthe", False, "word"),
        ("a.", False, "word"),
    ],
)
def test_kinds_of_tokens(text: str, special: bool, kind: str) -> None:
    assert metrics.token_kind(text, special) == kind


def test_kinds_are_averaged_over_their_tokens() -> None:
    table = metrics.sinks_by_kind(planted(), IDS, np.ones((2, 6), bool), TEXTS, {1}, 0.3).set_index("kind")
    assert table.index[0] == "<bos>"
    assert table.loc["<bos>", "alpha"] == pytest.approx(0.6)
    assert table.loc["punctuation", "alpha"] == pytest.approx((3 * 0.05 + 0.4) / 4)
    assert table.loc["punctuation", "sink_rate"] == pytest.approx(25.0)
    assert table.loc["word", ["occurrences", "sink_rate"]].tolist() == [7, 0.0]
