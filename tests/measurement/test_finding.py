"""Where the sink collapses and is made anew, and numbers in sentences."""

from __future__ import annotations

import numpy as np
import pytest

from sinkscope.measurement import AttentionReceived, QueryKeyAngles, measure
from sinkscope.measurement.finding import bands, collapse, short
from sinkscope.measurement.rates import interval_words
from tests.families.registry import FAMILIES
from tests.measurement.test_strongest import planted


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ([0, 0, 90, 97, 88, 5, 12, 79, 100, 100], [(2, 4), (5, 6), (7, 9)]),
        ([0, 0, 61, 100, 36, 0, 83, 94], [(2, 4), (5, 5), (6, 7)]),
        ([0, 0, 90, 97, 88, 60, 79, 100], []),  # less is not gone
        ([90, 90, 0, 0, 0, 0], []),  # it ends and does not come back
        ([0, 0, 90, 0, 0, 90], []),  # single layers
        ([90, 90, 0, 90, 90, 0, 90, 90, 0, 90, 90], []),  # layers of two kinds that take turns
        ([0, 0, 0], []),
        ([np.nan, 80, 80, 0, 0, 80, 80, np.nan], [(1, 2), (3, 4), (5, 6)]),
    ],
)
def test_bands_of_layers_that_have_the_sink(rates: list[float], found: list[tuple[int, int]]) -> None:
    assert bands(np.array(rates, dtype=float)) == found


def test_a_collapse_is_found_with_the_norm_of_its_state() -> None:
    layers = 8
    received = np.full((3, layers, 2, 32), 0.01)
    there = [1, 2, 5, 6, 7]
    received[:, there, :, 0] = 0.8
    measured = planted(received, ("decoder",) * layers, 32)
    measured.data["hidden_norm"][:, [1, 2, 5, 6, 7, 8], 0] = 165.0
    said = collapse(measured.data, 0, 0.3)
    for part in ("layers 1 to 2: 100 to 100 %", "layers 3 to 4: at most 0 %", "layers 5 to 7: 100 to 100 %", "× 165"):
        assert part.replace("× 165", "× 160") in said or part in said
    assert said in str(measured.summary())
    assert collapse(planted(received[:, :5], ("decoder",) * 5, 32).data, 0, 0.3) == ""


def test_a_text_of_two_tokens_has_no_other_keys_to_compare_with() -> None:
    """Only a token itself sees the second one, which no cosine counts."""
    family = FAMILIES["llama"]
    measured = measure(family.build(), family.inputs(tokens=2), [AttentionReceived("all"), QueryKeyAngles()])
    said = str(measured.summary(epsilon=0.1))
    assert "cosine of" in said
    assert "nan" not in said


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.075, "0.075"),
        (1900.0, "1,900"),
        (0.58, "0.58"),
        (165.0, "160"),
        (1.0, "1.0"),
        (0.0012, "0.0012"),
        (2e6, "2.0e+06"),
    ],
)
def test_numbers_have_two_digits_and_no_exponent(value: float, text: str) -> None:
    assert short(value) == text


def test_an_interval_says_how_many_samples_it_is_over() -> None:
    assert interval_words(np.nan, np.nan, 1) == "one sample: no interval"
    assert "over 4 samples, which are few" in interval_words(1, 2, 4)
    assert "few" not in interval_words(1, 2, 5)
