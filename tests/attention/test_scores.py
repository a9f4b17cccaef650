"""Identities of what changes scores: qk-norm, scalable softmax, forgetting gate; and of differential attention."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.difference import halves
from sinkscope.attention.paths import sdpa
from sinkscope.attention.scores import MapScores
from sinkscope.attention.scores import ScoreRows as Rows
from sinkscope.attention.scoring.decay import accumulated
from sinkscope.model.positions import Rope, rotate

from .problems import DIM, HEADS, Problem, assert_close, build, problem

PATHS = ["reference", "fast", "chunked"]


def softmax(case: Problem, **options) -> torch.Tensor:
    return zoo.attend(case.query, case.key, case.value, "softmax", **options).output


def changed(case: Problem, **parameters: float) -> Problem:
    """The problem with some parameters filled with a number; dots are written as `__`."""
    filled = {name.replace("__", "."): number for name, number in parameters.items()}
    assert filled.keys() <= case.parameters.keys()
    return replace(
        case,
        parameters={
            name: torch.full_like(tensor, filled[name]) if name in filled else tensor
            for name, tensor in case.parameters.items()
        },
    )


# qk-norm


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_normalised_logits_are_bounded(norm):
    """|q·k| / √d ≤ √d · max|g_q| · max|g_k|, however large the inputs."""
    case = problem(zoo.ENTRIES["qk_norm"].make(norm=norm), tokens=20)
    query, key = case.built().before_rotation(100 * case.query, 100 * case.key)
    logits = query @ key.repeat_interleave(2, 1).transpose(-1, -2) / DIM**0.5
    gains = [parameter.abs().max() for parameter in case.parameters.values()]
    bound = DIM**0.5 * gains[0] * gains[1]
    assert 0.1 * bound < logits.abs().max() <= bound * (1 + 1e-6)
    same = torch.ones(1, 1, 1, DIM) * torch.tensor([1.0, -1] * (DIM // 2))
    query, key = build(zoo.ENTRIES["qk_norm"].make(norm=norm)).before_rotation(same.expand(1, 4, 1, DIM), same)
    assert (query[0, 0, 0] @ key[0, 0, 0]).item() / DIM**0.5 == pytest.approx(DIM**0.5, rel=1e-5)  # and it is reached


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_the_scale_of_queries_and_keys_does_not_matter(norm):
    case = problem(zoo.ENTRIES["qk_norm"].make(norm=norm), tokens=8, dtype=torch.float64)
    expected = case.attend(path="reference").weights
    scaled = replace(case, query=37 * case.query, key=51 * case.key).attend(path="reference").weights
    assert_close(scaled, expected, 1e-5)
    shifted = replace(case, query=case.query + 3).attend(path="reference").weights
    assert torch.allclose(shifted, expected, atol=1e-5) == (norm == "layernorm")


def test_norms_act_before_rotation():
    """A host that rotates normalised queries differs from one that normalises rotated ones, where gains differ."""
    case = problem(zoo.CATALOG["qk_norm"], tokens=6, kv_heads=4)
    operation = case.built()
    frequencies, _ = Rope(head_dim=DIM, length=8).frequencies()
    angle = torch.arange(6)[None, :, None] * frequencies
    rotation = (angle.cos(), angle.sin())
    assert case.spec.acts_before == {"rotation"}
    first = [rotate(x, rotation) for x in operation.before_rotation(case.query, case.key)]
    last = operation.before_rotation(rotate(case.query, rotation), rotate(case.key, rotation))
    assert_close(operation(*first, case.value).output, zoo.attend(*first, case.value, "softmax").output)
    assert not torch.allclose(operation(*first, case.value).output, operation(*last, case.value).output)


# scalable softmax


def test_a_query_that_sees_one_token_attends_to_it():
    """log 1 = 0; and with c log n = 1 for every query it is a softmax."""
    case = problem(zoo.CATALOG["scalable_softmax"], tokens=1)
    assert (case.attend(path="reference").weights == 1).all()


@pytest.mark.parametrize("n", [2, 5, 11])
def test_scores_are_scaled_by_the_logarithm_of_what_is_seen(n):
    case = changed(problem(zoo.CATALOG["scalable_softmax"], tokens=n), temperature__scale=1 / math.log(n))
    for path in PATHS:
        assert_close(case.attend(path=path).output[:, :, -1], softmax(case)[:, :, -1])
    doubled = changed(case, temperature__scale=2 / math.log(n)).attend().output
    assert_close(doubled[:, :, -1], softmax(case, scaling=2 / DIM**0.5)[:, :, -1])


def test_lengths_are_as_exact_as_float64_scores():
    case = problem(zoo.CATALOG["scalable_softmax"], tokens=7, dtype=torch.float64)
    seven = changed(case, temperature__scale=1 / math.log(7))
    for path in PATHS:
        assert_close(seven.attend(path=path).output[:, :, -1], softmax(seven)[:, :, -1], 1e-13)


def test_attention_does_not_fade_with_length():
    """n − 1 equal scores below one that is higher by s: n^s / (n^s + n − 1) of the weight, more for longer rows."""
    shares = []
    for n in (4, 64, 1024):
        key = torch.zeros(1, 1, n, 1)
        key[..., 0, 0] = 2
        case = torch.ones(1, 1, n, 1), key, key
        parameters = {"temperature.scale": torch.ones(1)}
        weights = zoo.attend(*case, "scalable_softmax", parameters, scaling=1.0, path="reference").weights
        shares.append(weights[0, 0, -1, 0].item())
        assert shares[-1] == pytest.approx(n**2 / (n**2 + n - 1), rel=1e-4)
    assert shares == sorted(shares)


def test_slots_are_scaled_with_the_query_but_sink_logits_are_not():
    spec = zoo.AttentionSpec(slots=(zoo.KeySlot(), zoo.LogitSlot()), temperature=zoo.LogLength())
    case = problem(spec, tokens=5)
    scale = case.parameters["temperature.scale"][:, None, None] * torch.arange(1, 6)[:, None].log()
    plain = zoo.AttentionSpec(slots=(zoo.KeySlot(), zoo.LogitSlot()))
    parameters = {name: tensor for name, tensor in case.parameters.items() if "slot" in name}
    expected = zoo.attend(scale * case.query, case.key, case.value, plain, parameters).output
    for path in PATHS:
        assert_close(case.attend(path=path).output, expected)


# forgetting gate


def test_a_gate_that_forgets_nothing_is_softmax():
    """f = 1."""
    case = changed(problem(zoo.CATALOG["forgetting_gate"], tokens=8), decay__weight=0, decay__bias=40)
    for path in ("reference", "chunked"):
        assert_close(case.attend(path=path).output, softmax(case))


def test_a_gate_that_forgets_everything_sees_itself():
    """f → 0: each token its own value."""
    case = changed(problem(zoo.CATALOG["forgetting_gate"], tokens=8), decay__weight=0, decay__bias=-60)
    assert_close(case.attend().output, case.value.repeat_interleave(2, 1))


class Alibi:
    """−m_h (t − k)."""

    def __init__(self, slopes: torch.Tensor, tokens: int) -> None:
        self.slopes, self.places = slopes, torch.arange(tokens, dtype=torch.float32)

    def rows(self, rows: slice) -> torch.Tensor:
        return -self.slopes[:, None, None] * (self.places[rows, None] - self.places[None, :])


def test_a_constant_gate_is_alibi():
    """f_h = e^−m everywhere adds −m (t − k)."""
    case = changed(problem(zoo.CATALOG["forgetting_gate"], tokens=9), decay__weight=0)
    slopes = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(HEADS)])
    case.parameters["decay.bias"].data = torch.logit((-slopes).exp())
    expected = softmax(case, bias=Alibi(slopes, 9))
    for path in ("reference", "chunked"):
        assert_close(case.attend(path=path).output, expected)


def test_what_is_carried_is_a_log_per_query_head_of_a_group():
    case = problem(zoo.CATALOG["forgetting_gate"], tokens=5)
    value, carried = case.built().before_cache(case.value, case.hidden)
    assert torch.equal(value, case.value)
    weight, bias = case.parameters["decay.weight"], case.parameters["decay.bias"]
    expected = torch.nn.functional.logsigmoid(case.hidden @ weight.T + bias)  # (batch, token, heads)
    assert carried.shape == (2, 2, 5, 2)
    assert_close(carried.transpose(2, 3).flatten(1, 2), expected.transpose(1, 2))
    assert (carried < 0).all()


def test_forgetting_is_exact_far_into_a_text():
    """Sums of ten thousands keep the small steps between neighbours: float32 would round them to 0.004."""
    steps = -torch.rand(1, 1, 60_000, 1)
    total = accumulated(steps, zoo.Visibility.of(zoo.Causal(), 60_000, 60_000))
    assert total[0, 0, -1] < -25_000
    assert_close(total[0, 0, 1:] - total[0, 0, :-1], steps[0, 0, 1:, 0].double(), 1e-6)


def test_keys_after_the_query_are_forgotten_too():
    """Ours, for bidirectional masks: the sum from the query to the key."""
    case = changed(problem(zoo.CATALOG["forgetting_gate"], tokens=6), decay__weight=0, decay__bias=0)
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    scores = case.query @ case.key.repeat_interleave(2, 1).transpose(-1, -2) / DIM**0.5
    expected = torch.softmax(scores + distance * math.log(0.5), -1)
    assert_close(case.attend(mask=zoo.Full(), path="reference").weights, expected)


def test_padding_in_front_forgets_nothing():
    """Whatever the block's input is at padding."""
    case = problem(zoo.CATALOG["forgetting_gate"], tokens=6)
    real = torch.tensor([[0, 0, 1, 1, 1, 1]] * 2)
    bound = zoo.Visibility.of(zoo.Causal(), 6, 6, attention_mask=real)
    expected = case.attend(mask=bound).output
    with torch.no_grad():
        case.hidden[:, :2] = 40
    assert_close(case.attend(mask=bound).output[:, :, 2:], expected[:, :, 2:])


# differential attention


def test_without_its_second_map_it_is_a_softmax_on_half_the_channels():
    """λ = 0: exp(λ_q1·λ_k1) = exp(λ_q2·λ_k2) and λ₀ = 0; then the norm of what comes out."""
    case = changed(problem(zoo.ENTRIES["differential"].make(lambda_init=0), tokens=7), difference__vectors=0.3)
    first = [halves(x)[0] for x in (case.query, case.key)]
    plain = zoo.attend(*first, case.value, "softmax").output
    expected = torch.nn.functional.rms_norm(plain, (DIM,), case.parameters["difference.gain"], eps=1e-5)
    for path in PATHS:
        assert_close(case.attend(path=path).output, expected)


def test_equal_halves_leave_one_minus_lambda_of_a_softmax():
    case = problem(zoo.CATALOG["differential"], tokens=7)
    quarters = [x.chunk(4, -1) for x in (case.query, case.key)]
    query, key = (torch.cat([a, a, c, c], -1) for a, _, c, _ in quarters)
    case = replace(case, query=query, key=key)
    plain = zoo.attend(halves(query)[0], halves(key)[0], case.value, "softmax", path="reference").weights
    factor = case.built().difference.factor()
    assert_close(case.attend(path="reference").weights, (1 - factor) * plain)


def test_both_maps_depend_on_relative_positions_alone():
    """Rotary pairs stay together: shifting all positions changes nothing, as it would with halves cut in the middle."""
    case = problem(zoo.CATALOG["differential"], tokens=6, kv_heads=4)
    frequencies, _ = Rope(head_dim=DIM, length=64).frequencies()

    def turned(start: int) -> list[torch.Tensor]:
        angle = torch.arange(start, start + 6)[None, :, None] * frequencies
        return [rotate(x, (angle.cos(), angle.sin())) for x in (case.query, case.key)]

    here, there = ([halves(x) for x in turned(start)] for start in (0, 40))
    for half in (0, 1):
        one, other = (query[half] @ key[half].transpose(-1, -2) for query, key in (here, there))
        assert_close(other, one)
    cut = [[x.chunk(2, -1)[0] for x in turned(start)] for start in (0, 40)]
    one, other = (query @ key.transpose(-1, -2) for query, key in cut)
    assert not torch.allclose(one, other, atol=1e-3)


def test_halves_are_all_channels_once():
    x = torch.arange(8.0).view(1, 1, 1, 8)
    first, second = halves(x)
    assert first.flatten().tolist() == [0, 1, 4, 5]
    assert second.flatten().tolist() == [2, 3, 6, 7]


def test_a_given_scaling_is_that_of_each_half():
    case = problem(zoo.CATALOG["differential"], tokens=5)
    for path in PATHS:
        assert_close(case.attend(scaling=(DIM / 2) ** -0.5, path=path).output, case.attend().output)
        assert not torch.allclose(case.attend(scaling=DIM**-0.5, path=path).output, case.attend().output)


@pytest.mark.parametrize(("layer", "start"), [(0, 0.2), (1, 0.355509), (11, 0.777870)])
def test_lambda_starts_higher_in_deeper_layers(layer, start):
    """λ₀ = 0.8 − 0.6 exp(−0.3 layer), layers from 0; the vectors at zero leave just that."""
    operation = zoo.CATALOG["differential"].build(heads=4, kv_heads=2, head_dim=8, hidden_size=32, layer=layer)
    torch.nn.init.zeros_(operation.difference.vectors)
    assert operation.difference.factor().item() == pytest.approx(start, abs=1e-6)


# padding and slots


def padded_rows(slots: tuple[zoo.SlotTerms, ...]) -> Rows:
    query, key = torch.randn(1, 2, 4, DIM), torch.randn(1, 2, 4, DIM)
    visibility = zoo.Visibility.of(zoo.Causal(), 4, 4, attention_mask=torch.tensor([[0, 1, 1, 1]]))
    return MapScores(query, key, 0.5, visibility, slots).rows(slice(0, 4))


def test_n_counts_tokens_and_no_slots():
    slots = (zoo.SlotTerms(), zoo.SlotTerms(logit=torch.ones(2)))
    assert padded_rows(slots).count.flatten().tolist() == padded_rows(()).count.flatten().tolist() == [1, 1, 2, 3]


def test_a_query_that_sees_no_token_sees_no_slot():
    visible = padded_rows((zoo.SlotTerms(),)).visible[0, 0]
    assert visible[:, 0].tolist() == [False, True, True, True]


def test_rows_that_see_nothing_weigh_nothing():
    scores, visible = torch.randn(3, 4), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    weights = zoo.Softmax().weights(scores, visible, visible.sum(-1, keepdim=True).clamp(min=1).float())
    torch.testing.assert_close(weights.sum(-1), torch.tensor([1.0, 0.0, 1.0]))


def test_elu_is_one_more_than_torchs():
    scores = torch.linspace(-3, 3, 7)[None]
    everything = torch.ones_like(scores, dtype=torch.bool)
    found = zoo.Elu().weights(scores, everything, torch.full((1, 1), 7.0))
    torch.testing.assert_close(found, torch.nn.functional.elu(scores) + 1)


def test_padding_queries_of_the_fused_kernel_give_zero():
    query, key = torch.randn(1, 2, 4, DIM), torch.randn(1, 2, 4, DIM)
    visibility = zoo.Visibility.of(zoo.Causal(), 4, 4, attention_mask=torch.tensor([[0, 0, 1, 1]]))
    output = sdpa.attention(query, key, key, (), visibility, 0.5)
    assert output[:, :, :2].abs().max() == 0
    assert output[:, :, 2:].abs().min() > 0
