"""Layers with recurrent states: what is done to the rows of the kept keys is done to the states as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sinkscope.caches.following import Coming
from sinkscope.caches.layers import HybridSinkWindow, HybridSlotsLayer, Shown
from sinkscope.caches.rotation import LayerRotation

ROWS, TOKENS = 3, 5


def given() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"key": (2, TOKENS, 4), "value": (2, TOKENS, 4), "conv": (6, 3), "recurrent": (2, 4, 4)}
    return {name: torch.randn(ROWS, *shape, generator=generator) for name, shape in shapes.items()}


def filled(layer: Any) -> Any:
    """A layer that was given keys, values and both kinds of states."""
    parts = given()
    coming = Coming(0, TOKENS, ROWS)
    layer.expect(coming)
    if isinstance(layer, HybridSinkWindow):
        layer.show(Shown(coming, 0, layer.sinks), None)
    layer.update_conv_state(parts["conv"])
    layer.update_recurrent_state(parts["recurrent"])
    layer.update(parts["key"], parts["value"])
    return layer


KINDS: dict[str, Callable[[], Any]] = {
    "window": lambda: HybridSinkWindow(1, 7, LayerRotation(None, None)),
    "slots": HybridSlotsLayer,
}
CHANGES: dict[str, Callable[[Any], object]] = {
    "permuted": lambda layer: layer.reorder_cache(torch.tensor([2, 0, 0])),
    "repeated": lambda layer: layer.batch_repeat_interleave(2),
    "selected": lambda layer: layer.batch_select_indices(torch.tensor([2, 1])),
    "selected by booleans": lambda layer: layer.batch_select_indices(torch.tensor([True, False, True])),
}
ROWS_AFTER = {
    "permuted": [2, 0, 0],
    "repeated": [0, 0, 1, 1, 2, 2],
    "selected": [2, 1],
    "selected by booleans": [0, 2],
}


def held(layer: Any) -> dict[str, Tensor]:
    keys, values = (
        (layer.slots["keys"], layer.slots["values"])
        if isinstance(layer, HybridSlotsLayer)
        else (layer.keys, layer.values)
    )
    return {"key": keys, "value": values, "conv": layer.conv_states[0], "recurrent": layer.recurrent_states[0]}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_keys_and_states_go_together(kind: str, change: str) -> None:
    layer = filled(KINDS[kind]())
    CHANGES[change](layer)
    for name, found in held(layer).items():
        assert torch.equal(found, given()[name][ROWS_AFTER[change]]), name


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_reset_the_states_are_zero_and_nothing_is_seen(kind: str) -> None:
    layer = filled(KINDS[kind]())
    layer.reset()
    assert layer.get_seq_length() == 0
    assert not layer.has_previous_state[0]
    assert not layer.conv_states[0].any()
    assert not layer.recurrent_states[0].any()
    assert filled(layer).get_seq_length() == TOKENS, "it can be used again"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_has_seen_nothing_has_no_rows_to_choose(kind: str, change: str) -> None:
    layer = KINDS[kind]()
    CHANGES[change](layer)
    assert layer.get_seq_length() == 0
    assert layer.conv_states[0] is None
