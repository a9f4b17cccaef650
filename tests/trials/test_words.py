"""Words follow intervals, in their order."""

from __future__ import annotations

import pytest

from sinkscope.statistics import Interval
from sinkscope.trials import explained, grade

NONE = float("nan")


@pytest.mark.parametrize(
    ("kl", "agreement", "lost", "word"),
    [
        ((0.005, 0.004, 0.006), 0.99, (0, -0.1, 0.1), "free"),
        ((0.005, 0.004, 0.006), 0.88, (0, -0.1, 0.1), "small"),  # the likeliest token changes too often
        ((0.005, 0.004, 0.006), 0.75, (0, -0.1, 0.1), "cannot tell"),
        ((0.05, 0.03, 0.07), 0.95, (0, -0.1, 0.1), "small"),
        ((0.05, 0.03, 0.07), 0.75, (0, -0.1, 0.1), "costs"),
        ((0.3, 0.2, 0.4), 0.70, (0.3, 0.2, 0.4), "costs"),
        ((0.3, -0.1, 0.7), 0.70, (0.3, -0.2, 0.9), "cannot tell"),
        ((8.0, 7.0, 9.0), 0.01, (7.3, 6.9, 7.7), "breaks"),
        ((0.005, 0.004, 0.006), 0.99, (1.5, 1.1, 1.9), "breaks"),  # asked first
        ((0.001, NONE, NONE), 1.0, (0.0, NONE, NONE), "cannot tell"),  # one text
    ],
)
def test_the_first_word_that_holds(kl: tuple[float, ...], agreement: float, lost: tuple[float, ...], word: str) -> None:
    assert grade(Interval(*kl), agreement, lost=Interval(*lost), texts=24).word == word


def test_a_loss_near_that_of_guessing_breaks_a_model_whatever_it_was_before() -> None:
    kl, lost = Interval(0.5, 0.4, 0.6), Interval(0.5, 0.4, 0.6)
    assert grade(kl, 0.5, lost=lost, nats=6.5, vocabulary=1000, texts=24).word == "breaks"
    assert grade(kl, 0.5, lost=lost, nats=5.0, vocabulary=1000, texts=24).word == "costs"


def test_the_tolerance_moves_the_words() -> None:
    kl = Interval(0.05, 0.04, 0.06)
    assert grade(kl, 0.99, texts=24, tolerance=0.1).word == "free"
    assert grade(kl, 0.99, texts=24, tolerance=0.005).word == "costs"


def test_cannot_tell_says_how_many_texts_would() -> None:
    # The half-width must fall from .2 to .08 below the bound of "small": (.2 / .08)² times as many texts.
    found = grade(Interval(0.02, -0.18, 0.22), 0.95, texts=8)
    assert found.word == "cannot tell"
    assert found.why == "about 50 texts would"


def test_the_table_names_every_word_in_the_order_in_which_they_are_asked() -> None:
    lines = explained(0.01).splitlines()
    assert [line.split("  ")[0] for line in lines[:5]] == ["breaks", "free", "small", "costs", "cannot tell"]
    assert "0.01" in lines[1]
