"""What a configuration refuses before a model is built."""

from __future__ import annotations

import pytest
import torch

from sinkscope.attention import AttentionSpec, HeadGate
from sinkscope.errors import InputError
from sinkscope.model import LabConfig


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        ({"name": "k_bias_lowrank", "d_a": 99}, "d_a = 99: expected at most the head width, 32"),
        (AttentionSpec(output=(HeadGate(reads=999),)), "a gate that reads 999 channels"),
    ],
)
def test_an_operation_that_does_not_fit_is_refused_before_anything_is_built(attention, words):
    state = torch.get_rng_state()
    LabConfig(attention="kv_bias")
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(InputError, match=words):
        LabConfig(attention=attention)
    with pytest.raises(InputError, match=words):
        LabConfig(attention=["softmax", attention])
