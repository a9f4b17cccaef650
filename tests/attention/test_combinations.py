"""Pieces cross freely; what means nothing is refused when it is built, saying why."""

from __future__ import annotations

import itertools

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.errors import InputError

from .problems import assert_close, assert_paths_agree, bound, build, problem

NORMALIZERS = {
    "softmax": zoo.Softmax(),
    "scaled": zoo.ScaledSoftmax(alpha=0.5),
    "power": zoo.PowerSoftmax(p=2),
    "clipped": zoo.ClippedSoftmax(),
    "softpick": zoo.Softpick(),
    "sigmoid": zoo.Sigmoid(),
    "power of sigmoids": zoo.PowerSigmoid(p=3),
    "elu": zoo.Elu(normalized=True),
    "relu": zoo.Relu(normalized=True),
    "linear": zoo.Linear(divisor="abs_sum"),
    "sticks": zoo.StickBreaking(),
}
SLOTS = {
    "none": (),
    "key": (zoo.KeySlot(value="learned"),),
    "closed": (zoo.KeySlot(initial_logit=-2.0), zoo.KeySlot(value="learned", shared=True)),
    "logit": (zoo.LogitSlot(reads_input=True), zoo.KeySlot(value=zoo.FixedValue())),
    "zero": (zoo.ZeroSlot(),),
}
FURTHER = {
    "plain": {},
    "temperature": {"temperature": zoo.LogLength(), "query_key": zoo.QueryKeyNorm()},
    "decay": {"decay": zoo.ForgettingGate(), "value_gate": zoo.ValueGate()},
    "gates": {"output": (zoo.ValueBias(), zoo.HeadGate(reads="all"), zoo.ElementGate())},
}
CROSSED = list(itertools.product(NORMALIZERS, SLOTS, FURTHER))


def crossed(normalizer: str, slots: str, further: str) -> zoo.AttentionSpec | None:
    """The combination, or None where it is refused."""
    try:
        return zoo.AttentionSpec(normalizer=NORMALIZERS[normalizer], slots=SLOTS[slots], **FURTHER[further])
    except ValueError:
        return None


def assert_works(spec: zoo.AttentionSpec) -> None:
    """Paths agree in values and gradients, whatever learns has a gradient, and the value survives JSON."""
    case = problem(spec, tokens=11)
    for mask in ("document", "prefix"):
        assert_paths_agree(case, ["fast", "chunked"], mask=bound(mask, 11))
    gradients = case.gradients()[1]
    assert [name for name, found in zip(case.names[1:], gradients, strict=True) if found.abs().max() == 0] == []
    assert zoo.AttentionSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.slow
@pytest.mark.parametrize(("normalizer", "slots", "further"), CROSSED)
def test_pieces_cross(normalizer, slots, further):
    if (spec := crossed(normalizer, slots, further)) is not None:
        assert_works(spec)


def test_few_combinations_are_refused():
    pairs = itertools.product(NORMALIZERS, SLOTS)
    refused = {(normalizer, slots) for normalizer, slots in pairs if crossed(normalizer, slots, "plain") is None}
    assert refused == {
        *((normalizer, "zero") for normalizer in ("softpick", "sigmoid", "relu", "linear", "sticks")),
        *((normalizer, slots) for normalizer in ("sigmoid", "linear", "sticks") for slots in ("closed", "logit")),
    }


def test_differential_attention_crosses_what_comes_before_and_after():
    further = {"value_gate": zoo.ValueGate(), "temperature": zoo.LogLength(), "decay": zoo.ForgettingGate()}
    assert_works(zoo.AttentionSpec(difference=zoo.Difference(), output=(zoo.HeadGate(),), **further))


def test_kernels_cross_what_does_not_touch_scores():
    for feature, divisor in (("elu", "sum"), ("mlp", "abs_sum"), ("elu", "one")):
        similarity, normalizer = zoo.Kernel(feature=feature), zoo.Linear(divisor=divisor)
        further = {"query_key": zoo.QueryKeyNorm(), "value_gate": zoo.ValueGate(), "output": (zoo.HeadGate(),)}
        assert_works(zoo.AttentionSpec(similarity=similarity, normalizer=normalizer, **further))


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ({"normalizer": zoo.Sigmoid(), "slots": (zoo.ZeroSlot(),)}, "changes nothing under 'sigmoid'"),
        ({"normalizer": zoo.Relu(), "slots": (zoo.KeySlot(),)}, "changes nothing under 'relu'"),
        ({"normalizer": zoo.StickBreaking(), "slots": (zoo.LogitSlot(),)}, "changes nothing under 'stick_breaking'"),
        ({"normalizer": zoo.Softpick(), "slots": (zoo.ZeroSlot(),)}, "weighs nothing under 'softpick'"),
        ({"normalizer": zoo.Relu(normalized=True), "slots": (zoo.ZeroSlot(),)}, "weighs nothing under 'relu'"),
        (
            {"normalizer": zoo.Softpick(), "slots": (zoo.SuffixSlot(),)},
            "StableMask's pseudo logits belong to a softmax",
        ),
        ({"normalizer": zoo.Linear(divisor="sum")}, "divided by their sum"),
        ({"similarity": zoo.Kernel(feature="mlp"), "normalizer": zoo.Linear(divisor="sum")}, "divided by their sum"),
        ({"similarity": zoo.Kernel(feature="elu")}, "its normalizer is 'linear', not 'softmax'"),
        (
            {"similarity": zoo.Kernel(feature="elu"), "normalizer": zoo.Linear(), "temperature": zoo.LogLength()},
            "not linear in its query",
        ),
        (
            {
                "similarity": zoo.Kernel(feature="elu"),
                "normalizer": zoo.Linear(divisor="sum"),
                "slots": (zoo.KeySlot(),),
            },
            "a learned key is not a feature",
        ),
        ({"normalizer": zoo.Linear(), "decay": zoo.ForgettingGate()}, "linear weights have none"),
        ({"normalizer": zoo.Linear(divisor="abs_sum"), "slots": (zoo.LogitSlot(),)}, "linear weights have none"),
        (
            {
                "normalizer": zoo.Linear(divisor="abs_sum"),
                "slots": (zoo.KeySlot(value="learned", initial_logit=0.0),),
            },
            "linear weights have none",
        ),
        ({"difference": zoo.Difference(), "slots": (zoo.ZeroSlot(),)}, "no slots, no other normalizer"),
        ({"difference": zoo.Difference(), "normalizer": zoo.Sigmoid()}, "no slots, no other normalizer"),
        ({"difference": zoo.Difference(), "query_key": zoo.QueryKeyNorm()}, "mix its halves"),
    ],
)
def test_what_means_nothing_is_refused(pieces, words):
    with pytest.raises(ValueError, match=words):
        zoo.AttentionSpec(**pieces)


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("softmax", {"kv_heads": 3}, r"kv_heads = 3 does not divide heads = 4: choose from \[1, 2, 4\]"),
        ("softmax", {"heads": 0}, "heads = 0: at least 1"),
        ("softmax", {"head_dim": 0}, "head_dim = 0: at least 1"),
        ({"name": "k_bias_lowrank", "d_a": 9}, {}, "d_a = 9: expected at most the head width, 8"),
        ("differential", {"head_dim": 6}, "head_dim = 6 is not a multiple of 4"),
        ("gated_head", {"hidden_size": 30}, "hidden_size = 30 to be a multiple of heads = 4; reads='all' does not"),
        ({"name": "gated_head", "reads": "nothing", "mlp_width": 2}, {}, "cannot use mlp_width"),
    ],
)
def test_sizes_that_do_not_fit(name, sizes, words):
    with pytest.raises(InputError, match=words):
        zoo.resolve(name).build(**{"heads": 4, "kv_heads": 2, "head_dim": 8, "hidden_size": 32, **sizes})


def test_what_an_operation_acts_on_is_known_before_it_is_built(variant):
    """`needs_hidden` and `acts_before` say what is read and changed, no more and no less."""
    case = problem(variant.spec, tokens=4)
    operation = case.built()
    query, key = operation.before_rotation(case.query, case.key)
    value, carried = operation.before_cache(case.value, case.hidden)
    acts = {"rotation": query is not case.query or key is not case.key, "cache": value is not case.value}
    acts["cache"] |= carried is not None
    assert {place for place, does in acts.items() if does} == variant.spec.acts_before
    if not variant.spec.needs_hidden:
        assert_close(operation(query, key, value).output, case.attend().output)
        return
    with pytest.raises(InputError, match="input"):
        zoo.attend(case.query, case.key, case.value, variant.spec, case.parameters or None)


def test_no_two_lines_are_the_same():
    assert len(set(zoo.CATALOG.values())) == len(zoo.CATALOG)
    assert all(build(spec).spec == spec for spec in zoo.CATALOG.values())


def test_a_bias_needs_no_module():
    """Anything with `rows` is a position bias."""

    class Nothing:
        def rows(self, rows: slice) -> torch.Tensor:
            return torch.zeros(1, 1, rows.stop - rows.start, 5)

    case = problem(zoo.CATALOG["sigmoid"], tokens=5)
    assert_close(case.attend(bias=Nothing()).output, case.attend().output)
