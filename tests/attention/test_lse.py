"""Log-sum-exps with and without the sink, at logits of any size."""

from __future__ import annotations

import pytest
import torch

from sinkscope.attention import token_share, with_sink, without_sink

OFFSETS = [0.0, -300.0, 300.0, 1e5]


def exact(offset: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """L, b, and the share of the tokens as a quotient, which the offset does not change."""
    lse, sink = torch.linspace(-8, 8, 33, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    return lse + offset, sink + offset, lse.exp() / (lse.exp() + sink.exp())


@pytest.mark.parametrize("offset", OFFSETS)
def test_both_conventions_give_the_share_of_the_tokens(offset):
    lse, sink, share = exact(offset)
    tolerance = 1e-15 * (10 + abs(offset)) * 4
    assert (token_share(lse, sink, includes_sink=False) - share).abs().max() < tolerance
    assert (token_share(with_sink(lse, sink), sink, includes_sink=True) - share).abs().max() < tolerance


@pytest.mark.parametrize("offset", OFFSETS)
def test_one_convention_from_the_other(offset):
    lse, sink, _ = exact(offset)
    back = without_sink(with_sink(lse, sink), sink)
    assert (back - lse).abs().max() < 1e-11 * (1 + abs(offset))


def test_the_wrong_convention_is_far_off():
    lse = sink = torch.zeros(1)
    assert token_share(with_sink(lse, sink), sink, includes_sink=False).item() == pytest.approx(2 / 3)
    assert token_share(with_sink(lse, sink), sink, includes_sink=True).item() == pytest.approx(0.5)


def test_rows_that_see_nothing_have_no_share():
    nothing = torch.tensor([-torch.inf])
    for includes_sink in (True, False):
        for logit in (0.0, -torch.inf):
            sink = torch.full((1,), logit, requires_grad=True)
            share = token_share(nothing, sink, includes_sink=includes_sink)
            assert (share.item(), torch.autograd.grad(share, sink)[0].item()) == (0, 0)


def test_true_gradients():
    lse, sink = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda one, other: token_share(one, other, includes_sink=False), (lse, sink))
    assert torch.autograd.gradcheck(
        lambda one, other: token_share(with_sink(one, other), other, includes_sink=True), (lse, sink)
    )


def test_a_sink_at_zero_is_invisible_in_half_precision():
    """Beside scores of some nats; one beside the log-sum-exp halves the output."""
    output, lse = torch.ones(1, dtype=torch.bfloat16), torch.tensor([14.0])
    assert (output * token_share(lse, torch.zeros(1), includes_sink=False)).bfloat16().item() == 1
    assert (output * token_share(lse, torch.tensor([14.0]), includes_sink=False)).bfloat16().item() == 0.5
