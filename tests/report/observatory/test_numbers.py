import json

import numpy as np
import pytest

from sinkscope.report.observatory.numbers import few, short


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 37.0, 1e4, 1e9])
def test_four_digits_are_kept_and_few_characters_used(scale):
    values = scale * np.random.default_rng(0).uniform(-1, 1, 500)
    rounded = short(values)
    np.testing.assert_allclose(rounded, values, rtol=5.1e-4)
    np.testing.assert_allclose(rounded, [float(f"{value:.4g}") for value in values], rtol=1e-12)
    assert len(json.dumps(rounded)) < 500 * 15


def test_what_json_lacks_is_none_and_zero_stays():
    assert short(np.array([[np.nan, np.inf], [-np.inf, 0.0]])) == [[None, None], [None, 0.0]]
    assert short(np.array(0.12345)) == 0.1234 or short(np.array(0.12345)) == 0.1235


def test_few_positions_keep_the_start_the_end_and_what_was_asked_for():
    positions = np.arange(1000)
    chosen = few(positions, 100, (777,))
    assert chosen[:50].tolist() == list(range(50))
    assert {777, 999} <= {*chosen.tolist()}
    assert len(chosen) <= 101
    assert (np.diff(chosen) > 0).all()
    assert few(positions, 1000).tolist() == positions.tolist()
