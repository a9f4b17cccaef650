"""Specifications: JSON, names, refusals, explanations."""

from __future__ import annotations

import json

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.errors import InputError


def test_json_round_trip(variant):
    spec = variant.spec
    assert zoo.AttentionSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert hash(zoo.AttentionSpec.from_dict(spec.to_dict())) == hash(spec)
    assert zoo.resolve(spec) is spec
    assert zoo.resolve(spec.to_dict()) == spec


def test_name_round_trip(variant):
    """A name with options makes the operation; its defaults are what the name alone makes."""
    assert zoo.resolve({"name": variant.name, **variant.chosen}) == variant.spec
    assert zoo.resolve(variant.name) == zoo.CATALOG[variant.name] == zoo.ENTRIES[variant.name].spec
    assert zoo.name_of(zoo.CATALOG[variant.name]) == variant.name
    assert (zoo.name_of(variant.spec) == variant.name) == (variant.spec == zoo.CATALOG[variant.name])


def test_fields_without_a_kind_are_of_the_first_that_has_them():
    made = zoo.AttentionSpec.from_dict({"query_key": {"initial": 2.0}, "value_gate": {"openness": 0.3}})
    assert (made.query_key, made.value_gate) == (zoo.CosineScores(initial=2.0), zoo.ValueGate(openness=0.3))
    assert zoo.AttentionSpec.from_dict({"query_key": {}}).query_key == zoo.QueryKeyNorm()


def test_masks_survive_json():
    spec = zoo.AttentionSpec(mask=(zoo.Causal() & zoo.Window(8)) | zoo.VisiblePrefix(2))
    assert zoo.AttentionSpec.from_dict(json.loads(json.dumps(spec.to_dict()))).mask == spec.mask


def test_a_specs_own_mask_is_in_force():
    q, k, v = (torch.randn(1, 2, 9, 4) for _ in range(3))
    windowed = zoo.AttentionSpec(mask=zoo.Causal() & zoo.Window(3))
    for path in ("fast", "reference"):
        found = zoo.attend(q, k, v, windowed, path=path).output
        torch.testing.assert_close(found, zoo.attend(q, k, v, "softmax", mask=windowed.mask).output)
        assert not torch.allclose(found, zoo.attend(q, k, v, "softmax").output)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"normaliser": {"kind": "softmax"}}, "did you mean 'normalizer'"),
        ({"normalizer": {"kind": "softmx"}}, "did you mean 'softmax'"),
        ({"normalizer": {}}, "normalizer"),
        ({"normalizer": {"kind": "softmax", "alpha": 3}}, "normalizer.alpha"),
        ({"normalizer": {"kind": "scaled_softmax"}}, "normalizer"),
        ({"mask": {"kind": "window", "size": 0}}, "size"),
        ({"mask": {"kind": "prefix", "length": 0}}, "length"),
        ({"slots": [{"kind": "logit", "initial": float("nan")}]}, "slots"),
        ({"slots": [{"kind": "key", "vlaue": "zero"}]}, "did you mean 'slots.0.value'"),
        ({"normalizer": {"kind": "sigmoid"}, "slots": [{"kind": "zero"}]}, "changes nothing"),
        ({"similarity": {"kind": "kernel", "feature": "elu"}}, "its normalizer is 'linear'"),
        ({"normalizer": "sofmax"}, "'normalizer' = 'sofmax'.* one of softmax, "),
        ({"query_key": "cosine"}, "'query_key' = 'cosine'.* one of query_key_norm, cosine$"),
        ({"query_key": {"kind": "cosin"}}, r"'query_key\.kind' 'cosin': did you mean 'cosine'"),
        ({"query_key": {"kind": "cosine", "initial": -1}}, r"'query_key\.initial' = -1"),
        ({"query_key": {"kind": "cosine", "initail": 1}}, r"did you mean 'query_key\.initial'"),
        ({"query_key": {"norm": "rms"}}, r"'query_key\.norm' 'rms': did you mean 'rmsnorm'"),
        ({"value_gate": {"kind": "value_gate", "openness": 3}}, r"'value_gate\.openness' = 3"),
        ({"value_gate": {"kind": "value_gradient", "opennes": 3}}, r"unknown .*'value_gate\.opennes'"),
    ],
)
def test_refused_in_one_line(data, words):
    with pytest.raises(InputError, match=words) as caught:
        zoo.AttentionSpec.from_dict(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"normalizer": {"kind": "tropical", "alpha": 1.5}}, "'tropical'"),
        ({"slots": [{"kind": "zero"}, {"kind": "register", "count": 4}]}, "'register'"),
        ({"mask": {"kind": "dilated", "step": 2}}, "'dilated'"),
        ({"decay": {"kind": "delta_rule"}}, "'delta_rule'"),
        ({"dropout": {"kind": "head_dropout"}}, "'dropout'"),
        ({"normalizer": {"kind": "sigmoid", "per_head_bias": True}}, "per_head_bias"),
    ],
)
def test_a_spec_from_a_newer_version_is_refused_in_one_line(data, words):
    """A piece, a kind or a field that this version does not know: named, never ignored."""
    with pytest.raises(InputError, match=words) as caught:
        zoo.resolve(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("sigmoyd", "did you mean 'sigmoid'"),
        ({"name": "softmax_scaled", "alpa": 1}, "did you mean 'alpha'"),
        ({"name": "softmax", "alpha": 1}, "'softmax' has no options"),
        ({"name": "softmax_scaled", "alpha": 0}, "alpha"),
        ({"name": "softmax_scaled", "alpha": -0.5}, "alpha"),
        ({"name": "softmax_scaled", "alpha": "a lot"}, "alpha"),
        ({"name": "softmax_power", "p": 0}, "p"),
        ({"name": "softmax_power", "p": -2}, "p"),
        ({"name": "softmax_power", "p": float("inf")}, "p"),
        ({"name": "clipped_softmax", "gamma": 0.01}, "gamma"),
        ({"name": "clipped_softmax", "zeta": 0}, "zeta"),
        ({"name": "clipped_softmax", "alpha": -12}, "alpha"),
        ({"name": "k_bias_lowrank", "d_a": 0}, "d_a"),
        ({"name": "k_bias_fixed_v", "direction": "frist"}, "did you mean 'first'"),
        ({"name": "k_bias_fixed_v", "norm": -1}, "norm"),
        ({"name": "stable_mask", "gamma": -0.1}, "gamma"),
        ({"name": "stable_mask", "gamma": "alibbi"}, "gamma"),
        ({"name": "stable_mask", "context": 0}, "context"),
        ({"name": "gated_head", "openness": 1}, "openness"),
        ({"name": "gated_head", "reads": "slices"}, "did you mean 'slice'"),
        ({"name": "qk_norm", "norm": "layer_norm"}, "did you mean 'layernorm'"),
        ({"name": "forgetting_gate", "openness": 0}, "openness"),
        ({"name": "differential", "lambda_init": 1}, "lambda_init"),
        ({"name": 3}, "unknown attention operation '3'"),
        (3, "expected a name"),
        (None, "expected a name"),
    ],
)
def test_bad_names_and_options(given, words):
    with pytest.raises(InputError, match=words) as caught:
        zoo.resolve(given)
    assert "\n" not in str(caught.value)


def test_missing_parameters():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match=r"slot_modules\.0\.key"):
        zoo.attend(q, q, q, "k_bias")
    with pytest.raises(InputError, match="none"):
        zoo.attend(q, q, q, "softmax", {"extra": q})
    with pytest.raises(InputError, match=r"slot_modules\.0\.key' \(3, 4\): expected \(2, 4\)"):
        zoo.attend(q, q, q, "k_bias", {"slot_modules.0.key": torch.zeros(3, 4)})


@pytest.mark.parametrize("scaling", [0.0, -1.0, float("nan")])
def test_a_scaling_that_is_not_positive(scaling):
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match="scaling"):
        zoo.attend(q, q, q, "softmax", scaling=scaling)


def test_heads_and_lengths_that_do_not_fit():
    q, three, two = torch.randn(1, 4, 3, 8), torch.randn(1, 3, 3, 8), torch.randn(1, 4, 2, 8)
    with pytest.raises(InputError, match="kv_heads = 3 does not divide heads = 4"):
        zoo.attend(q, three, three, "softmax")
    with pytest.raises(InputError, match="3 queries for 2 keys"):
        zoo.attend(q, two, two, "softmax")


def test_an_input_of_another_width_is_refused():
    q, hidden = torch.randn(1, 4, 5, 8), torch.randn(1, 5, 24)
    for name in ("gated_elementwise", "gated_value", "forgetting_gate"):
        operation = zoo.CATALOG[name].build(heads=4, kv_heads=4, head_dim=8, hidden_size=32)
        with pytest.raises(InputError, match=r"hidden \(1, 5, 24\).*\(batch, 5, 32\)"):
            operation.before_cache(q, hidden)
        with pytest.raises(InputError, match=r"hidden \(1, 5, 24\).*\(batch, 5, 32\)"):
            operation.weights(q, q, hidden=hidden)


def test_what_a_key_carries_must_be_there_for_every_key():
    q = torch.randn(1, 4, 5, 8)
    operation = zoo.CATALOG["forgetting_gate"].build(heads=4, kv_heads=4, head_dim=8, hidden_size=32)
    with pytest.raises(InputError, match="pass `carried`"):
        operation.weights(q, q, hidden=torch.randn(1, 5, 32))
    with pytest.raises(InputError, match="hidden has 3 tokens for 5 keys"):
        zoo.attend(q[:, :, :3], q, q, "forgetting_gate", operation.state_dict(), hidden=torch.randn(1, 3, 32))


@pytest.mark.parametrize("mask", [torch.ones(3, 3), torch.ones(2, 3, dtype=torch.bool)])
def test_masks_of_another_form(mask):
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match="mask"):
        zoo.attend(q, q, q, "softmax", mask=mask)


def test_explain_names_the_path():
    assert zoo.explain("k_bias", torch.zeros(1)).path == "fast"
    assert "softmax" in str(zoo.explain("sigmoid"))
    with pytest.raises(InputError, match="did you mean 'softpick'"):
        zoo.explain("softpik")


def test_grouped_queries_do_not_copy_the_keys():
    """The fast path hands the kernel as few key heads as it got."""
    seen = []

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.nn.functional.scaled_dot_product_attention:
                seen.append((args[1].shape[1], (kwargs or {}).get("enable_gqa")))
            return function(*args, **(kwargs or {}))

    q, kv = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    with Spy():
        zoo.attend(q, kv, kv, "softmax")
        zoo.attend(q, kv, kv, "softmax_off_by_one")
    assert seen == [(2, True), (2, True)]


def test_a_path_that_does_not_exist():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match="did you mean 'fast'"):
        zoo.attend(q, q, q, "sigmoid", path="fasst")
    assert zoo.attend(q, q, q, "sigmoid", path="fast").output.shape == q.shape


def test_two_ways_to_say_where_to_clip():
    with pytest.raises(InputError, match="alpha decides gamma"):
        zoo.ENTRIES["clipped_softmax"].make(gamma=-0.1, alpha=3)


def test_stable_mask_is_causal():
    with pytest.raises(InputError, match="cannot see yet"):
        zoo.AttentionSpec.from_dict({"slots": [{"kind": "suffix"}], "mask": {"kind": "full"}})
