"""Sigma-reparametrisation: what the formula promises, when it iterates, and what it covers (Zhai et al. 2023)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.model.reparam import Sigma, iterate, reparametrized

IDS = torch.randint(1, 53, (2, 9), generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def model(**fields: object) -> LabForCausalLM:
    return LabForCausalLM(LabConfig(**SIZES | fields, weight_reparam="sigma"))


def moved(lab: LabForCausalLM) -> list[tuple[Tensor, Tensor]]:
    return [(sigma.u.clone(), sigma.v.clone()) for sigma, _ in reparametrized(lab)]


def started(weight: Tensor) -> Sigma:
    sigma = Sigma(weight, 1.0).to(weight.dtype)
    sigma.start(weight)
    return sigma


@torch.no_grad()
def test_it_starts_as_the_matrix_itself():
    weight = torch.randn(7, 5, dtype=torch.float64)
    sigma = started(weight)
    assert sigma.gamma.item() == pytest.approx(torch.linalg.svdvals(weight)[0].item())
    torch.testing.assert_close(sigma(weight), weight)


@torch.no_grad()
def test_gamma_is_the_spectral_norm_once_the_iteration_has_converged():
    weight = torch.randn(7, 5, dtype=torch.float64)
    sigma = started(weight)
    sigma.gamma.fill_(2.5)
    other = torch.randn(7, 5, dtype=torch.float64) * 10
    far = abs(torch.linalg.svdvals(sigma(other))[0].item() - 2.5)
    for _ in range(200):
        sigma.iterate(other)
    assert far > 0.1
    assert torch.linalg.svdvals(sigma(other))[0].item() == pytest.approx(2.5, abs=1e-9)


def test_the_gradient_is_that_of_a_fixed_u_and_v():
    """dσ/dW = u vᵀ, and γ's gradient is ⟨W / σ, G⟩; nothing reaches u and v."""
    weight = torch.randn(4, 3, dtype=torch.float64)
    sigma = started(weight)
    weight.requires_grad_()
    toward = torch.randn(4, 3, dtype=torch.float64)
    found = torch.autograd.grad((sigma(weight) * toward).sum(), [weight, sigma.gamma])
    size = (sigma.u @ weight @ sigma.v).detach()
    inner = (weight * toward).sum().detach()
    expected = sigma.gamma * (toward / size - inner / size**2 * torch.outer(sigma.u, sigma.v))
    torch.testing.assert_close(found[0], expected.detach())
    torch.testing.assert_close(found[1], inner / size)
    assert not sigma.u.requires_grad
    assert not sigma.v.requires_grad


def test_one_step_of_iteration_is_written_out():
    weight = torch.randn(4, 3)
    sigma = started(torch.randn(4, 3))
    before = sigma.u.clone()
    sigma.iterate(weight)
    v = weight.T @ before
    v = v / v.norm()
    torch.testing.assert_close(sigma.v, v)
    torch.testing.assert_close(sigma.u, (weight @ v) / (weight @ v).norm())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_takes_one_step_a_pass_and_evaluation_none(checkpointing):
    lab = model()
    if checkpointing:
        newest = hasattr(lab, "activation_checkpointing_enable")  # its name since transformers 5.23
        (lab.activation_checkpointing_enable if newest else lab.gradient_checkpointing_enable)()
    with torch.no_grad():
        for _, weight in reparametrized(lab):
            weight += torch.randn_like(weight)
    before = moved(lab)
    lab.eval()(IDS)
    assert all(torch.equal(u, now) for (u, _), (now, _) in zip(before, moved(lab), strict=True))
    expected = [(sigma.u.clone(), sigma.v.clone(), weight.detach()) for sigma, weight in reparametrized(lab)]
    lab.train()(IDS, labels=IDS, use_cache=False).loss.backward()
    for (u, _, weight), (found, _) in zip(expected, moved(lab), strict=True):
        v = nn.functional.normalize(weight.T @ u, dim=0)
        torch.testing.assert_close(found, nn.functional.normalize(weight @ v, dim=0))


def test_two_passes_may_come_before_one_backward_pass():
    lab = model().train()
    with torch.no_grad():
        for _, weight in reparametrized(lab):
            weight += torch.randn_like(weight)
    (lab(IDS, labels=IDS).loss + lab(IDS, labels=IDS).loss).backward()
    assert all(sigma.gamma.grad is not None for sigma, _ in reparametrized(lab))


def test_every_matrix_of_a_block_and_no_other():
    lab = model(attention="kernel_mlp", attention_every=2, mamba_d_state=4)
    covered = {name for name, module in lab.named_modules() if parametrize.is_parametrized(module)}
    expected = {f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"}
    expected |= {f"model.layers.1.mamba.mixer.{name}_proj" for name in ("in", "x", "dt", "out")}
    expected |= {f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 1) for name in ("gate", "up", "down")}
    assert covered == expected


def test_the_weight_that_others_read_is_the_one_in_use():
    lab = model().eval()
    attention = lab.model.layers[0].self_attn
    with torch.no_grad():
        next(reparametrized(attention))[0].gamma.mul_(3)
    hidden = torch.randn(1, 4, 24)
    torch.testing.assert_close(attention.q_proj(hidden), hidden @ attention.q_proj.weight.T)
    assert torch.linalg.svdvals(attention.q_proj.weight.detach())[0].item() == pytest.approx(
        next(reparametrized(attention))[0].gamma.item(), rel=1e-5
    )


def test_it_trains_and_keeps_its_spectral_norms():
    lab = model().train()
    optimizer = torch.optim.AdamW(lab.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = lab(IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
    for _ in range(50):
        iterate(lab)
    for sigma, weight in reparametrized(lab):
        norm = torch.linalg.svdvals(sigma(weight).detach())[0].item()
        assert norm == pytest.approx(abs(sigma.gamma.item()), rel=1e-3)


def test_half_precision_estimates_in_fp32():
    lab = model().eval()
    expected = lab(IDS).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(lab(IDS).logits.float(), expected, atol=0.1, rtol=0.1)
    sigma, weight = next(reparametrized(lab))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(sigma(weight), weight, atol=1e-6, rtol=1e-5)
