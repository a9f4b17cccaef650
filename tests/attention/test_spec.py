"""Specifications: JSON, refusals, explanations, masks."""

from __future__ import annotations

import json

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.errors import InputError


def test_json_round_trip(spec):
    assert zoo.AttentionSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert hash(zoo.AttentionSpec.from_dict(spec.to_dict())) == hash(spec)
    assert zoo.CATALOG[zoo.name_of(spec)] == spec


def test_masks_survive_json():
    spec = zoo.AttentionSpec(mask=(zoo.Causal() & zoo.Window(8)) | zoo.Prefix(2))
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
        ({"normalizer": {"kind": "softmx"}}, "normalizer"),
        ({"mask": {"kind": "window", "size": 0}}, "mask.window.size"),
        ({"slots": [{"kind": "logit", "initial": float("nan")}]}, "slots"),
        ({"normalizer": {"kind": "sigmoid"}, "slots": [{"kind": "zero"}]}, "changes nothing"),
    ],
)
def test_refused_in_one_line(data, words):
    with pytest.raises(InputError, match=words) as caught:
        zoo.AttentionSpec.from_dict(data)
    assert "\n" not in str(caught.value)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'sigmoid'"):
        zoo.resolve("sigmoyd")


def test_heads_that_do_not_divide():
    with pytest.raises(InputError, match="does not divide"):
        zoo.CATALOG["softmax"].build(heads=4, kv_heads=3, head_dim=8, hidden_size=32)


def test_missing_parameters():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match=r"slot_modules\.0\.key"):
        zoo.attend(q, q, q, "k_bias")
    with pytest.raises(InputError, match="none"):
        zoo.attend(q, q, q, "softmax", {"extra": q})


@pytest.mark.parametrize("mask", [torch.ones(3, 3), torch.ones(2, 3, dtype=torch.bool)])
def test_masks_of_another_form(mask):
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match="mask"):
        zoo.attend(q, q, q, "softmax", mask=mask)


def test_document_mask_needs_documents():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match="document numbers"):
        zoo.attend(q, q, q, "softmax", mask=zoo.Causal() & zoo.Document())


def test_explain_names_the_path():
    assert zoo.explain("k_bias", torch.zeros(1)).path == "fast"
    assert "softmax" in str(zoo.explain("sigmoid"))


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
