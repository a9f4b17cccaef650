"""What quantized linear maps cost the shipped nano, as inequalities between arms on the same rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import sinkscope as ss
from sinkscope.data import build_inputs
from sinkscope.interventions import Intervention
from sinkscope.model import load_tokenizer
from sinkscope.quantization import Grid, QuantizeLinear, RotateInputs, SmoothQuant, calibrated, random_tokens
from sinkscope.sinks import First
from tests.quantization.linear.conftest import logits

pytestmark = pytest.mark.slow
W8, T8 = Grid(8, symmetric=True), Grid(8, "tensor", symmetric=True)
PLAIN, FIRST = QuantizeLinear(W8, T8), First(1)


@pytest.fixture(scope="module")
def nano() -> nn.Module:
    return ss.load("nano").eval()


def text(samples: int, seed: int) -> Tensor:
    options = {"vocab_size": 2048, "tokens": 128, "samples": samples, "seed": seed, "bos": "add"}
    return build_inputs("natural", tokenizer=load_tokenizer("nano"), **options).input_ids


@cache
def scored() -> Tensor:
    return text(24, 0)


@pytest.fixture(scope="module")
def calibration() -> Tensor:
    return text(8, 1)


def loss(model: nn.Module) -> float:
    """The mean loss of positions beyond the first."""
    log_probabilities = logits(model, input_ids=scored())[:, 1:-1].log_softmax(-1)
    return -float(log_probabilities.gather(2, scored()[:, 2:, None]).mean())


unrounded = cache(loss)


def cost(model: nn.Module, arm: Intervention) -> float:
    """The rise of the loss under an arm, in nats."""
    with arm.applied(model):
        rounded = loss(model)
    return rounded - unrounded(model)


@pytest.fixture(scope="module")
def nothing(nano: nn.Module) -> float:
    """What rounding costs where nothing is protected."""
    return cost(nano, PLAIN)


def test_protecting_the_sink_recovers_what_random_tokens_do_not(nano: nn.Module, nothing: float) -> None:
    protected = cost(nano, replace(PLAIN, protect=FIRST))
    controls = [
        cost(
            nano,
            replace(
                PLAIN, protect=random_tokens(FIRST, torch.Generator().manual_seed(seed), nano, {"input_ids": scored()})
            ),
        )
        for seed in (0, 1)
    ]
    assert protected < 0.25 * nothing  # 75 % of it recovered
    assert all(abs(control - nothing) < 0.1 * nothing for control in controls)
    assert cost(nano, QuantizeLinear(W8, W8)) < 0.25 * nothing  # each token its own range


def test_static_ranges_calibrated_with_the_sink_cost_more(nano: nn.Module, calibration: Tensor) -> None:
    nothing = cost(nano, replace(PLAIN, static=calibrated(nano, calibration, T8)))
    without = calibrated(nano, calibration, T8, protect=FIRST)
    assert cost(nano, replace(PLAIN, static=without, protect=FIRST)) < 0.5 * nothing
    assert 0.2 * nothing < cost(nano, replace(PLAIN, static=without)) < nothing


def test_smoothing_must_be_calibrated_on_what_is_served(nano: nn.Module, nothing: float, calibration: Tensor) -> None:
    served = SmoothQuant.of(nano, calibration)
    other = SmoothQuant.of(nano, calibration, protect=FIRST)
    assert cost(nano, replace(PLAIN, transform=served)) < 0.6 * nothing
    assert cost(nano, replace(PLAIN, transform=other)) > nothing
    assert cost(nano, replace(PLAIN, transform=other, protect=FIRST)) < 0.25 * nothing


def test_rotations_recover_most_of_the_cost(nano: nn.Module, nothing: float) -> None:
    for rotation in (RotateInputs(kind="orthogonal"), RotateInputs(["down"], kind="orthogonal")):
        assert cost(nano, replace(PLAIN, transform=rotation)) < 0.3 * nothing
    assert torch.isfinite(torch.tensor(nothing))
