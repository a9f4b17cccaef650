"""Identities of slots: learned keys and values, off by one, StableMask, learned sink logits."""

from __future__ import annotations

import math

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.functional import DenseVisibility

from .problems import DIM, HEADS, Problem, assert_close, bound, build, problem, weights_of

KEY, VALUE, LOGIT = "slot_modules.0.key", "slot_modules.0.value", "slot_modules.0.logit"
PATHS = ["reference", "fast", "chunked"]


def attend(case: Problem, name: str | zoo.AttentionSpec, parameters: dict | None = None, **options) -> zoo.Attended:
    """Another operation on the tensors of a problem."""
    return zoo.attend(case.query, case.key, case.value, name, parameters, **options)


@pytest.mark.parametrize("path", PATHS)
def test_zero_key_and_value_is_off_by_one(path):
    """A key-value bias of zeros and a key bias of zeros are softmax-off-by-one; so is a sink logit of 0."""
    case = problem(zoo.CATALOG["kv_bias"], tokens=8)
    expected = attend(case, "softmax_off_by_one").output
    zeros = {name: torch.zeros_like(tensor) for name, tensor in case.parameters.items()}
    assert_close(case.with_inputs((*case.inputs[:3], *zeros.values())).attend(path=path).output, expected)
    assert_close(attend(case, "k_bias", {KEY: zeros[KEY]}, path=path).output, expected)
    assert_close(attend(case, "sink_logit", {LOGIT: torch.zeros(HEADS)}, path=path).output, expected)


def test_off_by_one_is_a_softmax_with_a_zero_in_front_dropped():
    scores = torch.tensor([2.0, 1, -1], dtype=torch.float64)
    expected = torch.softmax(torch.cat([torch.zeros(1), scores]), 0)
    torch.testing.assert_close(weights_of("softmax_off_by_one", scores), expected[1:])
    assert expected[0].item() == pytest.approx(0.087144, abs=1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("start", [-30.0, -1e4])
def test_a_closed_slot_is_plain_softmax(path, start):
    """A sink logit, or the logit of a key slot, far below every score."""
    case = problem(zoo.CATALOG["k_bias"], tokens=8)
    expected = attend(case, "softmax").output
    closed = torch.full((HEADS,), start)
    assert_close(attend(case, "sink_logit", {LOGIT: closed}, path=path).output, expected)
    slot = zoo.AttentionSpec(slots=(zoo.KeySlot(value="learned", initial_logit=start),))
    assert (build(slot).state_dict()[LOGIT] == start).all()
    parameters = {KEY: case.parameters[KEY], VALUE: torch.ones(2, DIM), LOGIT: closed}
    assert_close(attend(case, slot, parameters, path=path).output, expected)


@pytest.mark.parametrize("name", ["k_bias", "kv_bias"])
def test_a_key_far_below_every_score_is_plain_softmax(name):
    """k* with logits −inf: queries with one constant channel, and k* = −1e4 there."""
    case = problem(zoo.CATALOG[name], tokens=8)
    with torch.no_grad():
        case.query[..., 0] = 1
        case.parameters[KEY].zero_()[:, 0] = -1e4
    assert_close(case.attend().output, attend(case, "softmax").output)


def test_the_slot_takes_the_dummy_querys_whole_attention():
    """With the paper's extra zero query, whose only key is the slot, the other rows stay as they are."""
    case = problem(zoo.CATALOG["kv_bias"], tokens=6, kv_heads=4)
    key = torch.cat([case.parameters[KEY][None, :, None].expand(2, -1, -1, -1), case.key], 2)
    value = torch.cat([case.parameters[VALUE][None, :, None].expand(2, -1, -1, -1), case.value], 2)
    query = torch.cat([torch.zeros(2, HEADS, 1, DIM), case.query], 2)
    whole = zoo.attend(query, key, value, "softmax", path="reference")
    assert (whole.weights[:, :, 0, 0] == 1).all()
    found = case.attend(path="reference")
    assert_close(found.output, whole.output[:, :, 1:])
    assert_close(found.slot_weights[..., 0], whole.weights[:, :, 1:, 0])


@pytest.mark.parametrize(("norm", "direction"), [(1, "first"), (5, "first"), (20, "uniform"), (0, "uniform")])
def test_fixed_values_have_their_norm_and_do_not_learn(norm, direction):
    """‖m v'‖ = ‖m v''‖ = m, no gradient to v*; m = 0 is the key bias (Gu et al. 2025, Table 5)."""
    case = problem(zoo.ENTRIES["k_bias_fixed_v"].make(direction=direction, norm=norm), tokens=5)
    terms = case.built().slot_terms(case.built().context(case.query, case.key))[0]
    torch.testing.assert_close(terms.value.norm(dim=-1), torch.full((2,), float(norm)))
    assert not terms.value.requires_grad
    assert set(case.parameters) == {KEY}
    if norm == 0:
        assert_close(case.attend().output, attend(case, "k_bias", case.parameters).output)


def test_a_low_rank_key_of_full_rank_is_a_key_bias():
    """d_a = d_h is the key bias; channels beyond d_a are no parameters and stay exactly zero."""
    case = problem(zoo.ENTRIES["k_bias_lowrank"].make(d_a=DIM), tokens=5)
    assert_close(case.attend().output, attend(case, "k_bias", case.parameters).output)
    low = problem(zoo.ENTRIES["k_bias_lowrank"].make(d_a=3), tokens=5)
    assert low.parameters[KEY].shape == (2, 3)
    terms = low.built().slot_terms(low.built().context(low.query, low.key))[0]
    assert terms.key[:, 3:].abs().sum() == 0
    padded = torch.nn.functional.pad(low.parameters[KEY], (0, DIM - 3))
    assert_close(low.attend().output, attend(low, "k_bias", {KEY: padded}).output)


@pytest.mark.parametrize("name", ["k_bias", "kv_bias"])
def test_a_shared_slot_is_the_same_in_every_head(name):
    case = problem(zoo.CATALOG[f"{name}_shared"], tokens=5)
    repeated = {key: tensor.expand(2, -1) for key, tensor in case.parameters.items()}
    assert all(len(tensor) == 1 for tensor in case.parameters.values())
    assert_close(case.attend().output, attend(case, name, repeated).output)


def test_several_slots_share_the_mass():
    """Two zero slots are one sink logit of log 2."""
    case = problem(zoo.AttentionSpec(slots=(zoo.ZeroSlot(), zoo.ZeroSlot())), tokens=7)
    one = {LOGIT: torch.full((HEADS,), math.log(2))}
    for path in PATHS:
        assert_close(case.attend(path=path).output, attend(case, "sink_logit", one).output)


def test_an_input_dependent_sink_logit_starts_as_a_constant_one():
    """w starts at zero; then b_h(x) = b_h + w_h·x is what decides."""
    spec = zoo.ENTRIES["sink_logit"].make(initial=0.7, reads_input=True)
    case = problem(spec, tokens=6)
    operation = build(spec)
    expected = attend(case, "sink_logit", {LOGIT: torch.full((HEADS,), 0.7)}).output
    assert_close(operation(case.query, case.key, case.value, hidden=case.hidden).output, expected)
    with torch.no_grad():
        operation.slot_modules[0].weight[1, 0] = 5
    found = operation(case.query, case.key, case.value, hidden=case.hidden).output
    assert_close(found[:, [0, 2, 3]], expected[:, [0, 2, 3]])
    assert not torch.allclose(found[:, 1], expected[:, 1])


# StableMask


def stable(gamma: float | str, context: int) -> zoo.AttentionSpec:
    return zoo.ENTRIES["stable_mask"].make(gamma=gamma, context=context)


@pytest.mark.parametrize("gamma", ["alibi", 0.0, 0.25])
def test_the_suffix_is_the_full_form_masked_twice(gamma):
    """Softmax over the whole context with p_tj = −γ j on later places, then masked again."""
    tokens, context = 7, 12
    case = problem(stable(gamma, context), tokens=tokens, kv_heads=4)
    slopes = torch.tensor([2 ** (-8 * (h + 1) / HEADS) if gamma == "alibi" else gamma for h in range(HEADS)])
    scores = torch.zeros(2, HEADS, tokens, context)
    scores[..., :tokens] = case.query @ case.key.transpose(-1, -2) / DIM**0.5
    pseudo = -slopes[:, None, None] * torch.arange(context)
    later = torch.arange(context) > torch.arange(tokens)[:, None]
    weights = torch.softmax(torch.where(later, pseudo, scores), -1).masked_fill(later, 0)[..., :tokens]
    attended = case.attend(path="reference")
    assert_close(attended.weights, weights)
    for path in PATHS:
        assert_close(case.attend(path=path).output, weights @ case.value)


def test_pseudo_logits_of_minus_infinity_are_plain_softmax():
    """A steep γ leaves no mass to later places; only place 1 of the first row still weighs e^−γ."""
    case = problem(stable(60.0, 64), tokens=6)
    assert_close(case.attend(path="reference").weights, attend(case, "softmax", path="reference").weights)


@pytest.mark.parametrize("gamma", ["alibi", 0.0, 0.05])
def test_identical_inputs_know_their_place(gamma):
    """Row sums rise strictly with t, up to exactly 1 at the last place of the context."""
    ones = torch.ones(1, HEADS, 16, DIM)
    sums = zoo.attend(ones, ones, ones, stable(gamma, 16), path="reference").weights.sum(-1)[0].double()
    assert (sums.diff(dim=-1) > 0).all()
    assert (sums[:, :-1] < 1).all()
    torch.testing.assert_close(sums[:, -1], torch.ones(HEADS, dtype=torch.float64))


def test_places_beyond_the_context_have_nothing_to_give_to():
    case = problem(stable("alibi", 4), tokens=9)
    sums = case.attend(path="reference").weights.sum(-1)
    assert (sums[..., :3] < 1).all()
    torch.testing.assert_close(sums[..., 3:], torch.ones_like(sums[..., 3:]))
    for path in PATHS:
        output, gradients = case.gradients(path=path)
        assert_close(output, case.attend(path="reference").output)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_places_count_from_the_start_of_a_document():
    case = problem(stable(0.3, 64), tokens=9)
    found = case.attend(mask=bound("document", 9), path="reference").weights
    alone = case.part(slice(5, 9), slice(0, 1)).attend(path="reference").weights
    assert_close(found[:1, :, 5:, 5:], alone)
    interleaved = zoo.Visibility.of(
        zoo.Causal() & zoo.Document(), 4, 4, documents=torch.tensor([[0, 1, 0, 1]]), attention_mask=torch.ones(1, 4)
    )
    assert interleaved.key.within_documents().tolist() == [[0, 0, 1, 1]]  # as each would alone


def test_places_are_those_of_the_mask_that_a_boolean_one_narrows():
    case, mask = problem(stable(0.3, 64), tokens=9), bound("document", 9)
    written = DenseVisibility(zoo.Full(), mask.query, mask.key, mask.dense(), mask)
    for path in PATHS:
        assert_close(case.attend(mask=written, path=path).output, case.attend(mask=mask, path=path).output)


# What a slot's score is


@pytest.mark.parametrize(
    "spec",
    [
        zoo.AttentionSpec(slots=(zoo.KeySlot(), zoo.LogitSlot()), temperature=zoo.LogLength()),
        zoo.AttentionSpec(slots=(zoo.KeySlot(),), temperature=zoo.LogLength(), first_key=zoo.FirstKeyLogit()),
    ],
)
def test_slot_logits_are_those_that_are_normalized(spec):
    """The last of all weights: exp(slot logit − log-sum-exp), with a temperature that scales keys of slots too."""
    case = problem(spec, tokens=7)
    operation = case.built()
    context = operation.context(case.query, case.key)
    found = case.attend(path="reference")
    logits = operation.slot_logits(case.query, context)
    assert_close((logits - found.lse[..., None]).exp(), found.slot_weights)
