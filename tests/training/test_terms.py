"""z-loss: its formula, its gradient, and that it is added in training alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import set_seed

from sinkscope.data import TrainingOrder
from sinkscope.training import LAB, Recipe
from sinkscope.training.start import lab_model
from sinkscope.training.terms import Terms, z_loss
from sinkscope.training.trainer import stacked
from tests.training.helpers import rows, trained, weights

LABELS = torch.tensor([[4, 2, -100, 1, 0], [-100, -100, -100, 3, -100]])


@pytest.mark.parametrize("shifted", [True, False])
def test_it_is_the_squared_log_partition_where_a_prediction_counts(shifted: bool) -> None:
    """Σ (log Σ exp z)² and its gradient 2 · log Z · softmax(z), against fp64 loops."""
    logits = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul_(4)
    logits = logits.float().requires_grad_()
    found = z_loss(logits, LABELS, shifted=shifted)
    (gradient,) = torch.autograd.grad(found, logits)
    expected, slope = 0.0, torch.zeros(2, 5, 7, dtype=torch.float64)
    for row in range(2):
        for t in range(5):
            label = t + 1 if shifted else t
            if label < 5 and LABELS[row, label] != -100:
                z = logits[row, t].detach().double()
                log = z.exp().sum().log()
                expected += float(log) ** 2
                slope[row, t] = 2 * log * z.exp() / z.exp().sum()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(gradient.double(), slope, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_it_is_logged_beside_the_loss_and_validation_goes_without(tiny: Callable[..., Recipe], runs: Path) -> None:
    """The first step's loss and validation are those of a run without it; the weights are not."""
    short = ("steps=2", "eval_every=1", "log_every=1")
    with_it, without = (
        trained(tiny(*short, *more), runs / name) for name, more in (("z", ("loss.z_loss=0.1",)), ("plain", ()))
    )
    first, plain = (next(row for row in rows(run) if row["step"] == 1) for run in (with_it, without))
    assert first["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    recipe = tiny(*short)
    data = LAB.data(recipe)
    set_seed(recipe.seed)
    model = lab_model(recipe, data.tokenizer)
    batch = stacked([TrainingOrder(data.train, 4, 1, recipe.seed)[item] for item in range(4)])
    with torch.no_grad():
        logits = model(batch["input_ids"]).logits[:, :-1]
    assert first["z_loss"] == pytest.approx(0.1 * float(logits.logsumexp(-1).square().mean()), rel=1e-5)
    assert "z_loss" not in plain
    one, two = weights(with_it), weights(without)
    assert not all(torch.equal(one[name], two[name]) for name in one)


def test_no_strength_is_no_term(tiny: Callable[..., Recipe]) -> None:
    assert tiny("loss.z_loss=0").hash({}) == tiny().hash({}) != tiny("loss.z_loss=1e-4").hash({})


def test_terms_are_means_over_steps_of_several_passes_and_over_processes() -> None:
    """What is logged is the mean of all processes and not the main one's share."""
    terms = Terms()
    for value in (1.0, 2.0, 3.0, 6.0):  # two steps of two passes: 3 and 9
        terms.begin()
        terms.add("some", torch.tensor(value))
        terms.add("other", torch.tensor(0.5))
        assert float(terms.latest()) == value + 0.5
    assert terms.means(2, lambda total: (total + 6.0) / 2) == {"some": 4.5, "other": 2.0}  # another process had 6
    assert terms.means(2, lambda total: total) == {}
