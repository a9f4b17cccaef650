"""Identities of similarities, and linear attention as a recurrence."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.model.positions import Rope, rotate

from .problems import DIM, assert_all_close, assert_close, build, problem


def test_kernel_attention_is_its_recurrence():
    """S_t = S_{t−1} + φ(k_t) v_tᵀ, z_t = z_{t−1} + φ(k_t); the state does not grow with T."""
    case = problem(zoo.CATALOG["kernel_elu_normalized"], tokens=33, kv_heads=4, dtype=torch.float64)
    query, key = (torch.nn.functional.elu(x) + 1 for x in (case.query, case.key))
    state, total, expected = torch.zeros(2, 4, DIM, DIM), torch.zeros(2, 4, DIM), []
    for t in range(33):
        state = state + key[:, :, t, :, None] * case.value[:, :, t, None, :]
        total = total + key[:, :, t]
        read = (query[:, :, t, None, :] @ state)[:, :, 0]
        expected.append(read / (query[:, :, t] * total).sum(-1, keepdim=True))
    assert_close(case.attend(path="reference").output, torch.stack(expected, 2), 1e-6)


def test_linear_attention_without_a_divisor_is_its_recurrence_too():
    case = problem(zoo.CATALOG["kernel_identity"], tokens=20, kv_heads=4, dtype=torch.float64)
    states = (case.key[..., None] * case.value[..., None, :]).cumsum(2) / DIM**0.5
    expected = (case.query[..., None, :] @ states)[..., 0, :]
    assert_close(case.attend(path="reference").output, expected, 1e-6)


@pytest.mark.parametrize("suffix", ["", "_normalized"])
def test_an_mlp_of_identities_on_positive_inputs_is_the_identity(suffix):
    """W₁ = W₂ = 1: values and gradients, where relu lets everything pass."""
    case = problem(zoo.CATALOG[f"kernel_mlp{suffix}"], tokens=7)
    with torch.no_grad():
        case.query.abs_()
        case.key.abs_()
        for parameter in case.parameters.values():
            parameter.copy_(torch.eye(DIM))
    plain = problem(zoo.CATALOG[f"kernel_identity{suffix}"], tokens=7).with_inputs(tuple(case.inputs[:3]))
    output, gradients = plain.gradients()
    found, others = case.gradients()
    assert_close(found, output)
    assert_all_close(others[:3], gradients)


def test_one_map_serves_queries_keys_and_all_heads():
    operation = build(zoo.CATALOG["kernel_mlp"])
    assert {name: tuple(p.shape) for name, p in operation.named_parameters()} == {
        "similarity.first": (DIM, DIM),
        "similarity.second": (DIM, DIM),
    }


@pytest.mark.parametrize("name", ["kernel_identity", "kernel_mlp"])
def test_weights_of_either_sign(name):
    weights = problem(zoo.CATALOG[name], tokens=9).attend(path="reference").weights
    assert weights.min() < 0 < weights.max()


def test_elu_features_make_positive_weights():
    case = problem(zoo.CATALOG["kernel_elu"], tokens=9)
    assert (case.attend(path="reference").weights + torch.ones(9, 9).triu(1) > 0).all()


@pytest.mark.parametrize("name", ["kernel_identity_normalized", "kernel_mlp_normalized"])
def test_small_sums_are_left_alone(name):
    """max(|Σ s|, 1): rows whose sum is below one in size are not blown up; the sign of the sum is kept."""
    case = problem(zoo.CATALOG[name], tokens=9)
    small = case.with_inputs((1e-3 * case.query, *case.inputs[1:]))
    plain = zoo.attend(
        small.query, small.key, small.value, name.removesuffix("_normalized"), small.parameters, path="reference"
    )
    if name == "kernel_identity_normalized":
        assert_close(small.attend(path="reference").weights, plain.weights)
    sums = case.attend(path="reference").weights.sum(-1)
    assert sums.min() < 0
    assert (sums.abs() <= 1 + 1e-6).all()


def test_features_act_after_rotation():
    """Catalog section 9.4: φ(R q), not R φ(q); what an operation is given is rotated, and it maps that."""
    case = problem(zoo.CATALOG["kernel_elu"], tokens=6, kv_heads=4)
    frequencies, _ = Rope(head_dim=DIM, length=8).frequencies()
    angle = torch.arange(6)[None, :, None] * frequencies
    query, key = (rotate(x, (angle.cos(), angle.sin())) for x in (case.query, case.key))
    assert "rotation" not in case.spec.acts_before
    weights = case.with_inputs((query, key, case.value)).attend(path="reference").weights
    features = [torch.nn.functional.elu(x) + 1 for x in (query, key)]
    assert_close(weights, (features[0] @ features[1].transpose(-1, -2) / DIM**0.5).tril())
