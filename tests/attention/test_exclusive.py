"""Exclusive self-attention: what leaves is orthogonal to the token's own value."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.outputs.exclusive import orthogonal
from sinkscope.errors import InputError
from sinkscope.measurement import HeadOutputs, SinkUpdate, measure
from sinkscope.model import LabConfig, LabForCausalLM

from .problems import assert_close, assert_paths_agree, bound, problem

EXCLUSIVE = zoo.CATALOG["exclusive"]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_nothing_of_the_own_value_leaves(kv_heads):
    case = problem(EXCLUSIVE, tokens=9, kv_heads=kv_heads, dtype=torch.float64)
    own = case.value.repeat_interleave(4 // kv_heads, 1)
    for path in ("reference", "fast", "chunked"):
        assert (case.attend(path=path).output * own).sum(-1).abs().max() < 1e-12


def test_the_diagonal_moves_nothing():
    """The output is that of weights without their diagonal, projected: any mass may go there."""
    case = problem(EXCLUSIVE, tokens=7, kv_heads=4, dtype=torch.float64)
    others = case.attend(path="reference").weights.tril(-1) @ case.value
    along = (others * case.value).sum(-1, keepdim=True) / case.value.square().sum(-1, keepdim=True)
    assert_close(case.attend().output, others - along * case.value, 1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_only_the_direction_of_the_own_value_counts(scale):
    y, v = torch.randn(5, 8), torch.randn(5, 8)
    assert_close(orthogonal(y, scale * v), orthogonal(y, v), 1e-5)


def test_a_value_of_zero_takes_nothing_out():
    case = problem(EXCLUSIVE, tokens=5, dtype=torch.float64)
    with torch.no_grad():
        case.value[:, :, 2] = 0
    plain = zoo.attend(case.query, case.key, case.value, "softmax", path="reference").output
    assert torch.equal(case.attend(path="reference").output[:, :, 2], plain[:, :, 2])
    assert all(torch.isfinite(gradient).all() for gradient in case.gradients()[1])


def test_true_gradients():
    y, v = (torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(orthogonal, (y, v))


def test_half_precision_is_computed_wide():
    case = problem(EXCLUSIVE, tokens=9)
    low = case.with_inputs(tuple(x.detach().bfloat16().requires_grad_() for x in case.inputs))
    assert low.attend().output.dtype == torch.bfloat16
    assert_close(low.attend(path="reference").output.float(), case.attend().output, 0.03)


def test_a_cached_step_has_its_own_value():
    case = problem(EXCLUSIVE, tokens=9)
    for queries in (1, 4):
        assert_close(case.last(queries).attend().output, case.attend().output[:, :, -queries:])
    tensors = (case.query[:, :, :5], case.key[:, :, :3], case.value[:, :, :3])
    for spec in (EXCLUSIVE, replace(EXCLUSIVE, slots=(zoo.SuffixSlot(),))):
        with pytest.raises(InputError, match="'exclusive' reads each query's own value: 5 queries have 3 values"):
            zoo.attend(*tensors, spec, mask=zoo.Full())


@pytest.mark.parametrize(
    "further",
    [
        {"slots": (zoo.KeySlot(value="learned"), zoo.LogitSlot())},
        {"output": (zoo.Exclusive(), zoo.ElementGate(), zoo.ValueBias())},
        {"output": (zoo.HeadGate(reads=3), zoo.Exclusive())},
        {"value_gate": zoo.ValueGate(), "query_key": zoo.QueryKeyNorm()},
        {"normalizer": zoo.Sigmoid()},
        {"difference": zoo.Difference()},
        {"decay": zoo.ForgettingGate(), "first_key": zoo.FirstKeyLogit(), "temperature": zoo.LogLength()},
    ],
    ids=lambda further: "+".join(further),
)
def test_it_composes(further):
    spec = replace(EXCLUSIVE, **further)
    case = problem(spec, tokens=11)
    for mask in ("document", "prefix"):
        assert_paths_agree(case, ["fast", "chunked"], mask=bound(mask, 11))
    assert zoo.AttentionSpec.from_dict(spec.to_dict()) == spec


def test_a_scalar_gate_commutes_and_a_gate_per_channel_does_not():
    gate = zoo.HeadGate(reads="nothing", openness=0.3)
    first, second = (zoo.AttentionSpec(output=pieces) for pieces in ((zoo.Exclusive(), gate), (gate, zoo.Exclusive())))
    case = problem(first, tokens=6)
    swapped = replace(
        case, spec=second, parameters={n.replace("modules.1", "modules.0"): p for n, p in case.parameters.items()}
    )
    assert_close(case.attend().output, swapped.attend().output)
    assert first != second


def test_twice_is_refused():
    with pytest.raises(InputError, match="one 'exclusive' is enough"):
        zoo.AttentionSpec(output=(zoo.Exclusive(), zoo.Exclusive()))


@pytest.mark.slow
@torch.no_grad()
def test_in_a_lab_model_decoding_equals_the_whole_pass_and_observers_see_what_leaves():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_key_value_heads": 2, "intermediate_size": 48}
    spec = replace(EXCLUSIVE, value_gate=zoo.ValueGate(), slots=(zoo.LogitSlot(),))
    model = LabForCausalLM(LabConfig(vocab_size=31, attention=spec, **sizes)).eval()
    ids = torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(1))
    whole = model(ids).logits
    cache, stepped = None, []
    for token in range(12):
        out = model(ids[:, token : token + 1], past_key_values=cache, use_cache=True)
        cache, stepped = out.past_key_values, [*stepped, out.logits]
    assert_close(torch.cat(stepped, 1), whole)
    seen = measure(model, ids, [SinkUpdate(), HeadOutputs()]).data
    assert bool((seen["sink_output_norm"] > 0).all())
