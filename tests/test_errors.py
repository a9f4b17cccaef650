"""Errors that say what would have been right."""

import pytest

from sinkscope.errors import InputError, UnsupportedModelError, unknown


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
