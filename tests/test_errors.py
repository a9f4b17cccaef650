"""Errors that say what would have been right."""

import math

import numpy as np
import pytest

from sinkscope.errors import InputError, UnsupportedModelError, is_number, is_whole, unknown


def test_the_nearest_choice_is_suggested() -> None:
    assert str(unknown("recipe", "nanno", ["nano", "mini"])) == "unknown recipe 'nanno': did you mean 'nano'?"


def test_all_choices_are_listed_when_none_is_near() -> None:
    assert str(unknown("recipe", "qqqq", ["nano", "mini"])) == "unknown recipe 'qqqq': choose from nano, mini"


def test_a_name_of_another_type_is_unknown() -> None:
    assert "'3'" in str(unknown("recipe", 3, ["nano", "mini"]))


def test_no_choices_are_no_list() -> None:
    assert str(unknown("recipe", "nano", [])) == "unknown recipe 'nano': there is none"


def test_choices_may_be_any_iterable_and_are_read_once() -> None:
    assert "'softmax'" in str(unknown("operation", "sofmax", iter({"softmax": 1, "sigmoid": 2})))


@pytest.mark.parametrize("kind", [ValueError, InputError])
def test_an_unsupported_model_is_bad_input(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="mamba"):
        raise UnsupportedModelError("mamba has no attention")


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_of_numpy_are_whole_numbers(value: object) -> None:
    assert is_whole(value, 3)
    assert not is_whole(value, 4)
    assert is_number(value, 2)


@pytest.mark.parametrize("value", [True, np.bool_(True), 3.0, np.float64(3), "3", None, math.nan])
def test_what_is_no_whole_number(value: object) -> None:
    assert not is_whole(value)


def test_numbers_are_finite_and_may_be_of_numpy() -> None:
    assert is_number(np.float32(0.5), 0)
    assert not any(is_number(value) for value in (True, math.nan, math.inf, "1", None, 1j))
