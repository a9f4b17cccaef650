"""What quantized linear maps cost the shipped nano, as inequalities between arms on the same rows."""

from __future__ import annotations

from dataclasses import replace

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


IDS, CALIBRATION = text(32, 0), text(8, 1)


def cost(model: nn.Module, arm: Intervention) -> float:
    """Nats by which the loss of positions beyond the first rises."""

    def loss() -> Tensor:
        found = logits(model, input_ids=IDS)[:, 1:-1].log_softmax(-1)
        return -found.gather(2, IDS[:, 2:, None]).mean()

    plain = loss()
    with arm.applied(model):
        return float(loss() - plain)


def test_sparing_the_sink_recovers_what_random_tokens_do_not(nano: nn.Module) -> None:
    nothing, protected = cost(nano, PLAIN), cost(nano, replace(PLAIN, protect=FIRST))
    controls = [
        cost(
            nano,
            replace(PLAIN, protect=random_tokens(FIRST, torch.Generator().manual_seed(seed), nano, {"input_ids": IDS})),
        )
        for seed in (0, 1)
    ]
    assert protected < 0.25 * nothing  # 75 % of it recovered
    assert all(abs(control - nothing) < 0.1 * nothing for control in controls)
    assert cost(nano, QuantizeLinear(W8, W8)) < 0.25 * nothing  # each token its own range


def test_ranges_that_are_frozen_with_the_sink_cost_as_much(nano: nn.Module) -> None:
    nothing = cost(nano, replace(PLAIN, static=calibrated(nano, CALIBRATION, T8)))
    without = calibrated(nano, CALIBRATION, T8, protect=FIRST)
    assert cost(nano, replace(PLAIN, static=without, protect=FIRST)) < 0.5 * nothing
    assert 0.2 * nothing < cost(nano, replace(PLAIN, static=without)) < nothing


def test_smoothing_must_be_calibrated_on_what_is_served(nano: nn.Module) -> None:
    nothing = cost(nano, PLAIN)
    served = SmoothQuant.of(nano, CALIBRATION)
    other = SmoothQuant.of(nano, CALIBRATION, protect=FIRST)
    assert cost(nano, replace(PLAIN, transform=served)) < 0.6 * nothing
    assert cost(nano, replace(PLAIN, transform=other)) > nothing
    assert cost(nano, replace(PLAIN, transform=other, protect=FIRST)) < 0.25 * nothing


def test_rotations_recover_most_of_it(nano: nn.Module) -> None:
    nothing = cost(nano, PLAIN)
    for rotation in (RotateInputs(kind="orthogonal"), RotateInputs(["down"], kind="orthogonal")):
        assert cost(nano, replace(PLAIN, transform=rotation)) < 0.3 * nothing
    assert torch.isfinite(torch.tensor(nothing))
