"""One step of each optimizer in closed form, and that OrthoAdam is Adam in another basis."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sinkscope.errors import InputError
from sinkscope.training.loading import load_recipe
from sinkscope.training.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Muon, OrthoAdam, RMSProp
from sinkscope.training.optimizers.ortho_adam import RotatedAdam, haar_drawn, rotated
from sinkscope.training.schedule import Constant, scheduler


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 5, bias=False)
        self.norm = nn.LayerNorm(5)
        self.output = nn.Linear(5, 7, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.output

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.output(self.norm(torch.relu(self.inner(self.embedding(ids)))))


def toy() -> Toy:
    torch.manual_seed(0)
    model = Toy().double()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def stepped(config: object, steps: int = 1) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Before, gradient, after, of every parameter."""
    model = toy()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = config.build(model)
    for _ in range(steps):
        optimizer.step()
    return [(old, p.grad, p.detach()) for old, p in zip(before, model.parameters(), strict=True)]


def test_adam_has_a_true_l2_term() -> None:
    for old, g, new in stepped(Adam(lr=0.1, weight_decay=0.3, eps=1e-6)):
        g = g + 0.3 * old
        torch.testing.assert_close(new, old - 0.1 * g / (g.abs() + 1e-6))


def test_without_decay_adam_is_adamw() -> None:
    for (_, _, one), (_, _, two) in zip(
        stepped(Adam(lr=0.1, weight_decay=0), 5), stepped(AdamW(lr=0.1, weight_decay=0), 5), strict=True
    ):
        torch.testing.assert_close(one, two)


def test_sgd_with_momentum() -> None:
    for old, g, new in stepped(SGD(lr=0.1, weight_decay=0, momentum=0.9), 2):
        torch.testing.assert_close(new, old - 0.1 * g - 0.1 * (0.9 * g + g))
    for old, g, new in stepped(SGD(lr=0.1, weight_decay=0.2)):
        torch.testing.assert_close(new, old - 0.1 * (g + 0.2 * old))


def test_rmsprop() -> None:
    for old, g, new in stepped(RMSProp(lr=0.1, weight_decay=0, alpha=0.75, eps=1e-6)):
        torch.testing.assert_close(new, old - 0.1 * g / (0.5 * g.abs() + 1e-6))


def test_orthoadam_without_rotation_is_adamw_bit_for_bit() -> None:
    one, two = toy(), toy()
    adamw = torch.optim.AdamW(one.parameters(), lr=0.1, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    ours = RotatedAdam(
        [{"params": list(two.parameters()), "weight_decay": 0.1}], 0.1, (0.9, 0.95), 1e-8, lambda p: [None] * p.ndim
    )
    for _ in range(5):
        adamw.step()
        ours.step()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-14, rtol=1e-14)


def test_orthoadam_is_adam_on_rotated_parameters() -> None:
    """Training W with OrthoAdam equals training Q W with AdamW, Q applied to every axis."""
    model = toy()
    draw = haar_drawn(3, 4096)
    turns = [draw(p) for p in model.parameters()]
    turned = [nn.Parameter(rotated(p.detach(), turn)) for p, turn in zip(model.parameters(), turns, strict=True)]
    for mirror, p, turn in zip(turned, model.parameters(), turns, strict=True):
        mirror.grad = rotated(p.grad, turn)
    ortho = OrthoAdam(lr=0.1, rotation_seed=3, decay_norms=True).build(model)
    adamw = torch.optim.AdamW(turned, lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(5):
        ortho.step()
        adamw.step()
    for mirror, p, turn in zip(turned, model.parameters(), turns, strict=True):
        torch.testing.assert_close(rotated(p.detach(), turn), mirror.detach())


def test_rotations_are_orthogonal_and_long_axes_are_left_alone() -> None:
    one, two = haar_drawn(0, 6)(torch.zeros(5, 9, dtype=torch.float64))
    assert two is None
    torch.testing.assert_close(one @ one.T, torch.eye(5, dtype=torch.float64))


def test_muon_takes_the_matrices_of_the_blocks() -> None:
    model = toy()
    optimizer = Muon(lr=0.1, weight_decay=0).build(model)
    muon, adamw = optimizer.parts
    assert [id(p) for group in muon.param_groups for p in group["params"]] == [id(model.inner.weight)]
    assert sum(len(group["params"]) for group in adamw.param_groups) == 4
    before = model.inner.weight.detach().clone()
    optimizer.step()
    update = (before - model.inner.weight.detach()) / (0.1 * 0.2 * 5**0.5)
    singular = torch.linalg.svdvals(update)
    assert singular.min() > 0.5  # Newton-Schulz brings all singular values near one
    assert singular.max() < 1.3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_schedules_reach_every_group_and_states_resume(name: str) -> None:
    config = OPTIMIZERS[name](lr=0.01)

    def run(steps: int, restart_at: int | None) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = Toy().double()
        optimizer = config.build(model)
        rates = scheduler(Constant(warmup=2), optimizer, steps=steps, lr=0.01)
        for step in range(steps):
            if step == restart_at:
                saved, other = optimizer.state_dict(), rates.state_dict()
                optimizer = config.build(model)
                rates = scheduler(Constant(warmup=2), optimizer, steps=steps, lr=0.01)
                optimizer.load_state_dict(saved)
                rates.load_state_dict(other)
            optimizer.zero_grad()
            model(torch.arange(7)).square().mean().backward()
            optimizer.step()
            rates.step()
            assert {group["lr"] for group in optimizer.param_groups} == {0.01 * min(1, (step + 1) / 2)}
        return [p.detach() for p in model.parameters()]

    for one, two in zip(run(6, None), run(6, 3), strict=True):
        assert torch.equal(one, two)


def test_another_optimizer_by_name_keeps_what_both_have() -> None:
    recipe = load_recipe("nano", ["optimizer.momentum=0.9", "optimizer.name=sgd", "optimizer.lr=0.03"])
    assert recipe.optimizer == SGD(lr=0.03, momentum=0.9)
    with pytest.raises(InputError, match=r"unknown recipe field 'optimizer\.betas'"):
        load_recipe("nano", ["optimizer.name=sgd", "optimizer.betas=[0.9, 0.9]"])
    with pytest.raises(InputError, match="did you mean 'rmsprop'"):
        load_recipe("nano", ["optimizer.name=rmsprob"])
    with pytest.raises(InputError, match="momentum above 0"):
        SGD(lr=1, nesterov=True).build(toy())
