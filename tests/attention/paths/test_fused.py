"""Fused kernels are taken where they may be, and nowhere else. What they compute: tests/attention/kernels."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.paths import fused
from sinkscope.errors import InputError


def draw() -> list[torch.Tensor]:
    return [torch.randn(1, 2, 9, 8) for _ in range(3)]


def test_asking_for_them_where_they_do_not_run_is_an_error():
    with pytest.raises(InputError, match="no fused path: fused kernels run on CUDA, not on cpu"):
        zoo.attend(*draw(), "sigmoid", path="fused")
    with pytest.raises(InputError, match="no fused kernel for 'softmax' weights"):
        zoo.attend(*draw(), "softmax", path="fused")


@pytest.mark.parametrize(("path", "taken"), [("auto", 1), ("fast", 1), ("fused", 1), ("reference", 0), ("streamed", 0)])
def test_they_are_taken_where_nothing_stands_against_it(monkeypatch, path, taken):
    seen = []

    def computed(query, key, value, normalizer, visibility, scaling):
        seen.append((normalizer, visibility.mask, scaling))
        return torch.zeros_like(query)

    monkeypatch.setattr(fused, "obstacle", lambda *_, **__: None)
    monkeypatch.setattr(fused, "attention", computed)
    output = zoo.attend(*draw(), "sigmoid_bias", path=path, scaling=0.5).output
    assert seen == [(zoo.Sigmoid(minus_log_n=True), zoo.Causal(), 0.5)] * taken
    assert bool((output == 0).all()) == bool(taken)
