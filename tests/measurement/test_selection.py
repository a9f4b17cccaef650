import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import at, depth_labels, layer_labels


def test_layers_carry_the_models_own_numbers(dataset):
    hybrid = dataset.assign_coords(layer_index=("layer", [3, 11, 19]))
    assert layer_labels(hybrid) == ["3", "11", "19"]


def test_stacks_are_named_where_there_are_several(dataset):
    both = dataset.assign_coords(stack=("layer", ["encoder", "decoder", "cross"]))
    assert layer_labels(both) == ["encoder 0", "decoder 1", "cross 2"]


def test_depths_of_two_stacks_are_told_apart(dataset):
    both = dataset.assign_coords(
        depth_index=("depth", [0, 1, 0, 1]), depth_stack=("depth", ["encoder"] * 2 + ["decoder"] * 2)
    )
    assert depth_labels(both) == ["encoder 0", "encoder 1", "decoder 0", "decoder 1"]


def test_a_position_that_was_not_measured_is_named(dataset):
    with pytest.raises(InputError, match="position 40"):
        at(dataset, 40)
