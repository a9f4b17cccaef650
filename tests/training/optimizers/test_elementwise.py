from __future__ import annotations

import torch
from torch import nn

from sinkscope.training.optimizers import AdamW


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.output = nn.Linear(4, 7)


def test_one_step_is_the_closed_form() -> None:
    torch.manual_seed(0)
    model = Toy()
    config = AdamW(lr=0.01, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-6)
    before = {name: value.detach().double() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    config.build(model).step()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.double()
        # the bias corrections of the first step cancel the decay rates of both moments
        expected = before[name] - 0.01 * (0.3 * before[name] + gradient / (gradient.abs() + 1e-6))
        torch.testing.assert_close(parameter.detach().double(), expected, atol=1e-6, rtol=1e-5)


def decayed(config: AdamW) -> set[str]:
    model = Toy()
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = config.build(model).param_groups
    return {names[parameter] for group in groups if group["weight_decay"] for parameter in group["params"]}


def test_everything_decays_unless_excluded() -> None:
    matrices = {"embedding.weight", "output.weight"}
    vectors = {"norm.weight", "norm.bias", "output.bias"}
    assert decayed(AdamW(lr=1)) == matrices | vectors
    assert decayed(AdamW(lr=1, decay_norms=False)) == matrices
    assert decayed(AdamW(lr=1, decay_embeddings=False)) == {"output.weight"} | vectors


def test_frozen_parameters_are_left_out() -> None:
    model = Toy()
    model.embedding.weight.requires_grad_(False)
    (group,) = AdamW(lr=1).build(model).param_groups
    assert len(group["params"]) == 4
