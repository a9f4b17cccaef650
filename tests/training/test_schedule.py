from __future__ import annotations

import pytest
import torch

from sinkscope.training.schedule import Constant, Cosine, Linear, Trapezoid, scheduler


def test_constant_after_a_warmup_from_zero() -> None:
    rates = [Constant(warmup=4).rate(step, steps=10, lr=2.0) for step in range(10)]
    assert rates == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_no_warmup_starts_at_the_full_rate() -> None:
    assert Constant(warmup=0).rate(0, steps=10, lr=2.0) == 2.0


def test_cosine_meets_its_three_points() -> None:
    rate = [Cosine(warmup=2, min_lr=0.2).rate(step, steps=10, lr=2.0) for step in range(11)]
    assert rate[:3] == [0.0, 1.0, 2.0]
    assert rate[6] == pytest.approx(1.1)  # half way: the mean of both
    assert rate[10] == pytest.approx(0.2)
    assert rate[2:] == sorted(rate[2:], reverse=True)


def test_cosine_to_the_rate_itself_is_constant() -> None:
    """The released configurations of the paper say cosine with min_lr = lr."""
    for step in range(20):
        assert Cosine(warmup=5, min_lr=4e-4).rate(step, steps=20, lr=4e-4) == pytest.approx(
            Constant(warmup=5).rate(step, steps=20, lr=4e-4)
        )


def test_a_line_meets_its_three_points() -> None:
    rate = [Linear(warmup=2, min_lr=0.2).rate(step, steps=10, lr=2.0) for step in range(11)]
    assert rate == pytest.approx([0.0, 1.0, *(2.0 - 0.225 * step for step in range(9))])


def test_a_trapezoid_rises_rests_and_falls() -> None:
    rate = [Trapezoid(warmup=2, decay=0.4, min_lr=0.5).rate(step, steps=10, lr=2.0) for step in range(11)]
    assert rate == pytest.approx([0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.625, 1.25, 0.875, 0.5])
    for step in range(10):  # nothing but the fall: a line from the end of the warm-up
        whole = Trapezoid(warmup=3, decay=1.0).rate(step, steps=10, lr=2.0)
        assert whole == pytest.approx(Linear(warmup=3).rate(step, steps=10, lr=2.0))


@pytest.mark.parametrize("schedule", [Constant(warmup=30), Cosine(warmup=30), Linear(warmup=30), Trapezoid(warmup=30)])
def test_a_run_may_end_within_its_warmup(schedule: Constant | Cosine | Linear | Trapezoid) -> None:
    assert [schedule.rate(step, steps=20, lr=3.0) for step in range(20)] == [step / 10 for step in range(20)]


def test_the_optimizer_follows() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    schedule = Cosine(warmup=3)
    following = scheduler(schedule, optimizer, steps=8, lr=0.3)
    for step in range(8):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(schedule.rate(step, steps=8, lr=0.3))
        optimizer.step()
        following.step()
