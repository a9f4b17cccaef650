"""Tables that lose no column: what they need is estimated from their words and numbers."""

from __future__ import annotations

import pandas as pd
import pytest

from sinkscope.report.page import Page, Section, render
from sinkscope.report.table import CHARACTER, LONG, PADDING, WIDTHS, Cell, fitting


def test_a_table_asks_for_the_least_width_that_holds_its_words() -> None:
    assert fitting(["a"], [["b"]], [False]) == f"w{WIDTHS[0]}"
    assert fitting(["a"] * 100, [["b"] * 100], [True] * 100) == "wide"
    columns, row = ["layer", "sink rate (%)"], ["3", "12345678901234567890"]
    needs = CHARACTER * (len("layer") + len(row[1])) + 2 * PADDING
    assert fitting(columns, [row], [False, True]) == f"w{next(width for width in WIDTHS if width >= needs)}"


def test_numbers_are_not_broken_and_sentences_are() -> None:
    sentence = "a sentence of words that goes on and on " * 5
    asked = [fitting(["statement"], [[sentence]], [number]) for number in (False, True)]
    assert asked == [f"w{WIDTHS[0]}", "wide"]


@pytest.mark.parametrize("columns", [1, 4, 9, 30])
def test_every_width_has_its_style_and_every_cell_its_name(columns: int) -> None:
    frame = pd.DataFrame([[1.5] * columns], columns=[f"column <{index}>" for index in range(columns)])
    html = render(Page("t", "l", sections=[Section("s", "s", table=frame)]))
    width = html.partition('<table class="')[2].partition('"')[0]
    assert f".{width} td {{ display: flex" in html
    assert html.count('data-name="column &lt;') == columns - 1


def test_long_texts_stand_below_their_name() -> None:
    assert Cell("x" * LONG).classes == ""
    assert Cell("x" * LONG, number=True, note="more").classes == "number long"
