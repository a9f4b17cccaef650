"""Golden values, computed elsewhere."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.model.positions import Rope, rotate

from .problems import weights_of

GOLDEN: list[tuple[str, dict, list[float], list[float]]] = [
    ("softmax_off_by_one", {}, [0, 0, 0], [0.25, 0.25, 0.25]),
    ("softmax_off_by_one", {}, [2, 1, -1], [0.643914, 0.236883, 0.032059]),
    ("softpick", {}, [2, 1, -1], [0.731059, 0.196612, 0]),
    ("softpick", {}, [-1, -2, -3], [0, 0, 0]),
    ("clipped_softmax", {"gamma": -0.03, "zeta": 1}, [4, 0, 0, 0], [0.946352, 0, 0, 0]),
    ("clipped_softmax", {"gamma": -0.1, "zeta": 1.1}, [4, 0, 0, 0], [1, 0, 0, 0]),
    ("softmax_power", {"p": 0.5}, [2, 1, 0], [0.256522, 0.094369, 0.034717]),
    ("softmax_power", {"p": 2}, [2, 1, 0], [0.931028, 0.342506, 0.126001]),
]


@pytest.mark.parametrize(("name", "options", "scores", "golden"), GOLDEN)
def test_weights(name, options, scores, golden):
    found = weights_of(zoo.ENTRIES[name].make(**options), scores)
    torch.testing.assert_close(found, torch.tensor(golden, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("tokens", "alpha"), [(8, 0.339732), (16, 0.211296), (64, 0.0741233), (128, 0.0424465)])
def test_uniform_causal_attention(tokens, alpha):
    """alpha_1 = H_T / T (Gu et al. 2025, section 3)."""
    zeros = torch.zeros(1, 1, tokens, 4)
    weights = zoo.attend(zeros, zeros, zeros, "softmax", path="reference").weights[0, 0]
    received = weights.sum(0) / torch.arange(tokens, 0, -1)
    assert received[0].item() == pytest.approx(alpha, abs=1e-6)
    assert received[-1].item() == pytest.approx(1 / tokens, abs=1e-6)


def test_rotary_logits():
    """Base 10000, d_h = 8, q = k = 1: the logits of the fourth query, its weights, and alpha at T = 64."""
    ones = torch.ones(1, 1, 64, 8)
    frequencies, _ = Rope(head_dim=8, length=64).frequencies()
    angle = torch.arange(64)[None, :, None] * frequencies
    turned = rotate(ones, (angle.cos(), angle.sin()))
    logits = (turned @ turned.transpose(-1, -2))[0, 0, 3, :4] / 8**0.5
    golden = torch.tensor([1.389387, 1.812822, 2.499803, 2.828427])
    torch.testing.assert_close(logits, golden, atol=1e-5, rtol=0)
    weights = zoo.attend(turned, turned, ones, "softmax", path="reference").weights[0, 0]
    golden = torch.tensor([0.102255, 0.156164, 0.310408, 0.431173])
    torch.testing.assert_close(weights[3, :4], golden, atol=1e-5, rtol=0)
    received = weights.sum(0) / torch.arange(64, 0, -1)
    assert received[0].item() == pytest.approx(0.058409, abs=1e-5)
    assert received[-1].item() == pytest.approx(0.051037, abs=1e-5)
