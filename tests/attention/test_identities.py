"""Golden values (catalogue section 0) and the identities between rows."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo

from .problems import problem


def weights_of(name: str, scores: list[float]) -> torch.Tensor:
    """The last row of weights when the logits of one query are exactly `scores`."""
    query = torch.ones(1, 1, len(scores), 1)
    key = torch.tensor(scores, dtype=torch.float32).view(1, 1, -1, 1)
    return zoo.attend(query, key, key, name, scaling=1.0, path="reference").weights[0, 0, -1]


def test_off_by_one_golden():
    torch.testing.assert_close(weights_of("softmax_off_by_one", [0, 0, 0]), torch.full((3,), 0.25))
    golden = torch.tensor([0.643914, 0.236883, 0.032059])
    torch.testing.assert_close(weights_of("softmax_off_by_one", [2, 1, -1]), golden, atol=1e-6, rtol=0)


def test_uniform_causal_attention_golden():
    """alpha_1 = H_T / T: .0741233 at T=64 (C1)."""
    zeros = torch.zeros(1, 1, 64, 4)
    weights = zoo.attend(zeros, zeros, zeros, "softmax", path="reference").weights[0, 0]
    alpha = weights.sum(0) / torch.arange(64, 0, -1)
    golden = torch.tensor([0.074123, 0.059427, 0.052321])
    torch.testing.assert_close(alpha[:3], golden, atol=1e-6, rtol=0)
    assert alpha[0].item() == pytest.approx(sum(1 / n for n in range(1, 65)) / 64, abs=1e-6)


def test_zero_key_and_value_is_off_by_one():
    """A7 with k* = 0, v* = 0 equals A24, and so does a sink logit of 0."""
    case = problem(zoo.CATALOG["kv_bias"], queries=8)
    tensors = (case.query, case.key, case.value)
    expected = zoo.attend(*tensors, "softmax_off_by_one").output
    zeros = {name: torch.zeros_like(tensor) for name, tensor in case.parameters.items()}
    torch.testing.assert_close(zoo.attend(*tensors, "kv_bias", zeros).output, expected)
    torch.testing.assert_close(
        zoo.attend(*tensors, "sink_logit", {"slot_modules.0.logit": torch.zeros(4)}).output, expected
    )


def test_a_closed_slot_is_plain_softmax():
    case = problem(zoo.CATALOG["softmax"], queries=8)
    tensors = (case.query, case.key, case.value)
    closed = {"slot_modules.0.logit": torch.full((4,), -1e4)}
    for path in ("fast", "reference"):
        torch.testing.assert_close(
            zoo.attend(*tensors, "sink_logit", closed, path=path).output, zoo.attend(*tensors, "softmax").output
        )


def test_value_bias_leaves_the_weights_alone():
    case = problem(zoo.CATALOG["v_bias"], queries=8)
    plain = zoo.attend(case.query, case.key, case.value, "softmax", path="reference")
    biased = case.attend(path="reference")
    assert torch.equal(biased.weights, plain.weights)
    bias = case.parameters["output_modules.0.value"][None, :, None]
    torch.testing.assert_close(biased.output, plain.output + bias)


def test_normalised_sigmoid_is_the_sigmoid_divided():
    case = problem(zoo.CATALOG["sigmoid"], queries=8)
    weights = case.attend(path="reference").weights
    normalised = zoo.attend(case.query, case.key, case.value, "sigmoid_normalized", path="reference").weights
    torch.testing.assert_close(normalised, weights / weights.sum(-1, keepdim=True))
    torch.testing.assert_close(normalised.sum(-1), torch.ones(2, 4, 8))


def test_fewer_learned_numbers_than_documented_would_be_noticed():
    """+L·H·d_h per bias (A7): counted for one layer."""
    counts = {
        name: sum(p.numel() for p in spec.build(heads=4, kv_heads=4, head_dim=6, hidden_size=24).parameters())
        for name, spec in zoo.CATALOG.items()
    }
    assert counts == {
        "softmax": 0,
        "softmax_off_by_one": 0,
        "sink_logit": 4,
        "sigmoid": 0,
        "sigmoid_normalized": 0,
        "kv_bias": 48,
        "k_bias": 24,
        "v_bias": 24,
    }
