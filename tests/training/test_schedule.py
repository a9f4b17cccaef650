from __future__ import annotations

import math

import pytest
import torch

from sinkscope.training import RECIPES
from sinkscope.training.schedule import AnySchedule, Constant, Cosine, LinearDecay, Trapezoid, scheduler


def rates(schedule: AnySchedule, steps: int, lr: float) -> list[float]:
    """The rate of every update, and the one that the scheduler is left with."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    following = scheduler(schedule, optimizer, steps=steps, lr=lr)
    taken = []
    for _ in range(steps):
        taken.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        following.step()
    return [*taken, optimizer.param_groups[0]["lr"]]


def reference(schedule: AnySchedule, step: int, steps: int, lr: float) -> float:
    """The closed form of each kind, one update at a time."""
    if step < schedule.warmup:
        return lr * step / schedule.warmup
    if isinstance(schedule, Constant):
        return lr
    start = schedule.warmup
    if isinstance(schedule, Trapezoid):
        start = max(start, steps - round(schedule.decay * steps))
    progress = max(0.0, (step - start) / max(1, steps - start))
    if isinstance(schedule, Cosine):
        return schedule.min_lr + (lr - schedule.min_lr) * (1 + math.cos(math.pi * progress)) / 2
    return lr + (schedule.min_lr - lr) * progress


@pytest.mark.parametrize("name", RECIPES)
def test_named_recipes_follow_the_closed_form(name: str) -> None:
    recipe = RECIPES[name]
    steps, lr = recipe.steps, recipe.optimizer.lr
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    factor = scheduler(recipe.schedule, optimizer, steps=steps, lr=lr).lr_lambdas[0]
    expected = [reference(recipe.schedule, step, steps, lr) for step in range(steps)]
    assert [lr * factor(step) for step in range(steps)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("warmup", [0, 1, 5, 20, 30])
@pytest.mark.parametrize("min_lr", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "trapezoid", "all trapezoid"])
def test_every_kind_follows_the_closed_form(kind: str, min_lr: float, warmup: int) -> None:
    """Also where the run ends within its warm-up, and where nothing is left to fall."""
    schedule = {
        "constant": Constant(warmup=warmup),
        "cosine": Cosine(warmup=warmup, min_lr=min_lr),
        "linear": LinearDecay(warmup=warmup, min_lr=min_lr),
        "trapezoid": Trapezoid(warmup=warmup, min_lr=min_lr, decay=0.4),
        "all trapezoid": Trapezoid(warmup=warmup, min_lr=min_lr, decay=1.0),
    }[kind]
    expected = [reference(schedule, step, 20, 2.0) for step in range(20)]
    assert rates(schedule, 20, 2.0)[:-1] == pytest.approx(expected, rel=1e-12)


def test_constant_after_a_warmup_from_zero() -> None:
    assert rates(Constant(warmup=4), 9, 2.0) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert rates(Constant(warmup=0), 1, 2.0) == [2.0, 2.0]


def test_cosine_meets_its_three_points() -> None:
    rate = rates(Cosine(warmup=2, min_lr=0.2), 10, 2.0)
    assert rate[:3] == [0.0, 1.0, 2.0]
    assert rate[6] == pytest.approx(1.1)  # half way: the mean of both
    assert rate[10] == pytest.approx(0.2)
    assert rate[2:] == sorted(rate[2:], reverse=True)


def test_cosine_to_the_rate_itself_is_constant() -> None:
    """The released configurations of the paper say cosine with min_lr = lr."""
    assert rates(Cosine(warmup=5, min_lr=4e-4), 20, 4e-4) == pytest.approx(rates(Constant(warmup=5), 20, 4e-4))


def test_a_line_meets_its_three_points() -> None:
    expected = [0.0, 1.0, *(2.0 - 0.225 * step for step in range(9))]
    assert rates(LinearDecay(warmup=2, min_lr=0.2), 10, 2.0) == pytest.approx(expected)


def test_a_trapezoid_rises_rests_and_falls() -> None:
    expected = [0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.625, 1.25, 0.875, 0.5]
    assert rates(Trapezoid(warmup=2, decay=0.4, min_lr=0.5), 10, 2.0) == pytest.approx(expected)
