"""Identities of normalisers and of the softmax's relatives."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.errors import InputError

from .problems import assert_close, problem, weights_of

SCORES = [[2.0, 1, -1], [0.0, 0, 0, 0], [-3.0, 5, 0.5, -7, 1], [4.0]]


def scores_of(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def same_weights(one: zoo.AttentionSpec, other: zoo.AttentionSpec) -> None:
    for scores in SCORES:
        torch.testing.assert_close(weights_of(one, scores), weights_of(other, scores), atol=1e-9, rtol=0)


def make(name: str, **options) -> zoo.AttentionSpec:
    return zoo.ENTRIES[name].make(**options)


# softmax with another Z


def test_alpha_scales_the_weights_and_so_the_output():
    """y(α) = α y(1), which is a scaling of W_O or of W_V; α = 1 is softmax."""
    case = problem(make("softmax_scaled", alpha=0.2), tokens=7)
    plain = zoo.attend(case.query, case.key, case.value, "softmax")
    for path in ("reference", "sdpa", "chunked"):
        assert_close(case.attend(path=path).output, 0.2 * plain.output)
    assert_close(case.attend().output, zoo.attend(case.query, case.key, 0.2 * case.value, "softmax").output)
    projection = torch.randn(8, 8)
    assert_close(case.attend().output @ projection, plain.output @ (0.2 * projection))
    same_weights(make("softmax_scaled", alpha=1), make("softmax"))


@pytest.mark.parametrize("p", [0.25, 1 / 3, 0.5, 1, 2, 4])
def test_power_softmax_is_a_root_of_a_softmax(p):
    """v_i Σ_j sim / (Σ sim^p)^(1/p) = softmax(p s)^(1/p); p = 1 is softmax."""
    for scores in SCORES:
        x = scores_of(scores)
        found = weights_of(make("softmax_power", p=p), x)
        torch.testing.assert_close(found, x.exp() / x.exp().pow(p).sum() ** (1 / p))
        torch.testing.assert_close(found, torch.softmax(p * x, 0) ** (1 / p))
    if p == 1:
        same_weights(make("softmax_power", p=1), make("softmax"))


def test_power_softmax_stays_finite_where_its_terms_would_not():
    for p in (0.25, 4):
        assert weights_of(make("softmax_power", p=p), [900.0, 899, -900]).isfinite().all()


@pytest.mark.parametrize("p", [0.5, 1, 2, 4])
def test_power_sigmoid_has_rows_of_norm_one(p):
    """σ(s) in proportion, Σ w^p = 1; p = 1 is the normalized sigmoid."""
    for scores in SCORES:
        x = scores_of(scores)
        found = weights_of(make("sigmoid_power", p=p), x)
        torch.testing.assert_close(found / found[0], x.sigmoid() / x.sigmoid()[0])
        torch.testing.assert_close(found.pow(p).sum().item(), 1.0)
        if p == 1:
            torch.testing.assert_close(found, weights_of(make("sigmoid_normalized"), x), atol=1e-6, rtol=0)


def test_power_sigmoid_stays_finite_where_its_terms_would_not():
    """Where every σ(s) underflows, the row still tells the scores apart."""
    assert weights_of(make("sigmoid_power", p=4), [900.0, 899, -900]).isfinite().all()
    assert weights_of(make("sigmoid_power", p=2), [-900.0, -1000])[0] == 1


# element-wise


def test_normalised_is_divided_by_the_sum():
    """Sigmoid, elu + 1 and ReLU over their sums."""
    pairs = [
        ("sigmoid", "sigmoid_normalized", {}),
        ("elu", "elu_normalized", {}),
        ("relu", "relu", {"normalized": True}),
    ]
    for name, normalised, options in pairs:
        for scores in SCORES[:3]:
            weights = weights_of(name, scores)
            expected = weights / (weights.sum() + 1e-8 / (len(scores) if name == "relu" else 1))
            torch.testing.assert_close(weights_of(make(normalised, **options), scores), expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("n", [1, 2, 7, 200])
def test_sigmoid_with_minus_log_n_sums_to_almost_one(n):
    """n / (1 + n) for zero scores; the gradient is bounded by 1/4, also with a bias."""
    assert weights_of("sigmoid_bias", [0.0] * n).sum().item() == pytest.approx(n / (1 + n))


def test_the_gradient_of_a_sigmoid_is_at_most_a_quarter():
    x = torch.linspace(-12, 12, 97, dtype=torch.float64, requires_grad=True)
    for name in ("sigmoid", "sigmoid_bias"):
        (gradient,) = torch.autograd.grad(weights_of(name, x).sum(), x)
        assert gradient.min() > 0
        assert 0.2 < gradient.max() <= 0.25


def test_n_counts_visible_keys_and_not_columns():
    """Sigmoid −log n, ReLU / n, clipped α / n, s·log n: a window of 3 in 9 tokens is the last 3 of them alone."""
    for spec in (make("sigmoid_bias"), make("relu"), make("clipped_softmax", alpha=0.5), make("scalable_softmax")):
        case = problem(spec, tokens=9)
        for path in ("reference", "fast", "chunked"):
            found = case.attend(mask=zoo.Causal() & zoo.Window(3), path=path).output[:, :, -1]
            assert_close(found, case.part(slice(6, 9)).attend(path="reference").output[:, :, -1])


def test_n_does_not_count_slots():
    """A slot is no token: with a zero slot (σ(0 − log n)) the tokens of an unnormalised sigmoid stay as they are."""
    slot = zoo.AttentionSpec(normalizer=zoo.Sigmoid(minus_log_n=True), slots=(zoo.KeySlot(value="learned"),))
    case = problem(slot, tokens=6)
    plain = zoo.attend(case.query, case.key, case.value, "sigmoid_bias", path="reference")
    assert_close(case.attend(path="reference").weights, plain.weights)


def test_relu_of_guo_divides_by_the_place_of_the_query():
    """Under a causal mask n is the place of the query, counted from 1."""
    case = problem(make("relu"), tokens=6, kv_heads=4)
    scores = (case.query @ case.key.transpose(-1, -2) / 8**0.5).relu().tril()
    expected = scores / torch.arange(1, 7)[:, None]
    assert_close(case.attend(path="reference").weights, expected)


# softpick


def test_softpick_equals_its_formula_in_range():
    """relu(e^s − 1) / Σ|e^s − 1| without any stabiliser, at every sign of the scores."""
    for scores in ([2.0, 1, -1], [-0.5, -2, -9], [3.0, -30, 0.1], [1e-3, -1e-3, 0]):
        x = torch.tensor(scores, dtype=torch.float64)
        expected = x.expm1().relu() / x.expm1().abs().sum()
        torch.testing.assert_close(weights_of("softpick", x), expected, atol=1e-7, rtol=1e-4)


def test_softpick_cannot_overflow():
    """The authors' m = max s, not clamped at 0, makes e^−m infinite where all scores are far below zero."""
    for scores in ([-1e4, -2e4], [1e4, -1e4, 9999.0], [-800.0]):
        x = scores_of(scores)
        found = weights_of("softpick", x)
        (gradient,) = torch.autograd.grad(found.square().sum(), x)
        assert found.isfinite().all()
        assert gradient.isfinite().all()
    assert weights_of("softpick", [1e4, -1e4]).tolist() == pytest.approx([1, 0])


def test_negative_scores_get_a_gradient_through_softpicks_denominator():
    x = scores_of([2.0, 1, -1])
    (gradient,) = torch.autograd.grad(weights_of("softpick", x)[0], x)
    assert gradient[2] > 0  # a lower |e^s − 1| leaves more to the others


def test_hidden_keys_add_nothing_to_softpicks_denominator():
    """Masked entries contribute 0 and not |0 − e^−m|."""
    case = problem(make("softpick"), tokens=8)
    first = case.part(slice(0, 3)).attend(path="reference").weights
    assert_close(case.attend(path="reference").weights[:, :, :3, :3], first)


@pytest.mark.parametrize("epsilon", [0, -1e-8])
def test_softpick_needs_something_in_its_denominator(epsilon):
    """Without ε a row of zero scores, or one that sees nothing, would be 0 / 0."""
    with pytest.raises(InputError, match="epsilon"):
        make("softpick", epsilon=epsilon)


# clipped softmax


def test_clipped_at_zero_and_one_is_softmax_exactly():
    case = problem(make("clipped_softmax", gamma=0, zeta=1), tokens=9)
    plain = zoo.attend(case.query, case.key, case.value, "softmax", path="reference")
    assert torch.equal(case.attend(path="reference").weights, plain.weights)


def test_clipped_entries_are_exactly_zero_and_have_no_gradient():
    x = scores_of([4.0, 0, 0, 0])
    found = weights_of(make("clipped_softmax", gamma=-0.03), x)
    assert found[1:].tolist() == [0, 0, 0]
    for entry in (1, 2, 3):
        (gradient,) = torch.autograd.grad(found[entry], x, retain_graph=True)
        assert gradient.abs().sum() == 0
    stretched = weights_of(make("clipped_softmax", gamma=-0.1, zeta=1.1), x)
    assert stretched[0] == 1
    (gradient,) = torch.autograd.grad(stretched[0], x)
    assert gradient.abs().sum() == 0


@pytest.mark.parametrize("n", [2, 10, 39, 41, 60])
def test_a_uniform_row_is_clipped_to_zero_from_its_length_on(n):
    """1/n ≤ −γ / (ζ − γ): with γ = −.025 and ζ = 1 from n = 41 on; in the form of α from α ≥ n / (n − 1)."""
    assert (weights_of("clipped_softmax", [0.0] * n).sum() == 0) == (n >= 41)
    for alpha in (0.9 * n / (n - 1), 1.01 * n / (n - 1)):
        clipped = weights_of(make("clipped_softmax", alpha=alpha), [0.0] * n).sum() == 0
        assert clipped == (alpha > n / (n - 1))


def test_clipped_alpha_is_gamma_over_n():
    for scores in SCORES[:3]:
        gamma = -0.3 / len(scores)
        expected = weights_of(make("clipped_softmax", gamma=gamma), scores)
        torch.testing.assert_close(weights_of(make("clipped_softmax", alpha=0.3), scores), expected, atol=1e-6, rtol=0)


# stick-breaking


def test_stick_breaking_gives_out_a_stick():
    """What is left after all keys is Π (1 − σ(s)); a huge score takes everything that is left."""
    for scores in SCORES:
        x = torch.tensor(scores, dtype=torch.float64)
        left = torch.sigmoid(-x).prod()
        assert weights_of("stick_breaking", x).sum().item() == pytest.approx(1 - left.item())
    taken = weights_of("stick_breaking", [3.0, 50, -2])
    assert taken[0] < 1e-12
    assert taken[1].item() == pytest.approx(1 - torch.sigmoid(torch.tensor(-2.0)).item(), abs=1e-6)


def test_stick_breaking_loses_nothing_at_large_scores():
    """fp32 at scores of ten thousand against float64: shares are no differences of huge sums."""
    scores = torch.tensor([0.3, 1e4, -0.2, 0.7, -9e3, 0.1])
    case = torch.ones(1, 1, 6, 1), scores.view(1, 1, 6, 1)
    found = zoo.attend(*case, case[1], "stick_breaking", scaling=1.0, path="reference").weights[0, 0, -1]
    torch.testing.assert_close(found.double(), weights_of("stick_breaking", scores), atol=1e-6, rtol=1e-5)


def test_a_slot_of_a_broken_stick_takes_its_share_last():
    case = problem(zoo.AttentionSpec(normalizer=zoo.StickBreaking(), slots=(zoo.KeySlot(value="learned"),)), tokens=6)
    plain = zoo.attend(case.query, case.key, case.value, "stick_breaking", path="reference").weights
    attended = case.attend(path="reference")
    assert_close(attended.weights, plain)
    assert (attended.slot_weights[..., 0] <= 1 - plain.sum(-1) + 1e-6).all()
