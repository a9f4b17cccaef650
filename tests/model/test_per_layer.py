"""Layers with operations and windows of their own: the same function however it is run, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

import sinkscope.attention as zoo
from sinkscope.attention import AttentionSpec
from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, measure
from sinkscope.model import LabConfig, LabForCausalLM
from tests.model.position_models import SIZES, in_chunks

CLOSE: dict[str, float] = {"atol": 3e-5, "rtol": 1e-4}
LOCAL = AttentionSpec(mask=zoo.Window(3))
PATTERNS: dict[str, list[Any]] = {
    "windows": [LOCAL, "softmax"],
    "operations": ["sigmoid", "kv_bias", {"name": "softmax_scaled", "alpha": 0.2}],
    "carried beside keys": ["forgetting_gate", LOCAL],
    "prefix": ["softmax", AttentionSpec(mask=zoo.Causal() | zoo.VisiblePrefix(2))],
}

CACHED = [(name, options) for name in PATTERNS for options in ({}, {"sink_tokens": 2}, {"kv_layers": [0, 0, 2, 2]})]
CACHED.remove(("carried beside keys", {"kv_layers": [0, 0, 2, 2]}))  # refused: what a layer learns is in its keys


def lab(attention: Any, **options: Any) -> LabForCausalLM:
    torch.manual_seed(0)
    return LabForCausalLM(LabConfig(**{**SIZES, "num_hidden_layers": 4, "attention": attention, **options})).eval()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(1, SIZES["vocab_size"], (2, 11), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_each_layer_is_that_of_a_model_with_its_operation_alone(ids: torch.Tensor) -> None:
    """The blocks of uniform models, one after the other by hand, are the model whose layers differ."""
    mixed = lab([LOCAL, "sigmoid"])
    state = mixed.state_dict()
    uniform = {index: lab(one) for index, one in enumerate((LOCAL, "sigmoid"))}
    for model in uniform.values():
        model.load_state_dict(state)
    hidden = mixed.model.embed_tokens(ids)
    for layer in range(4):
        states: list[torch.Tensor] = []
        model = uniform[layer % 2].model
        handles = [
            model.layers[layer].register_forward_pre_hook(lambda module, args, hidden=hidden: (hidden, *args[1:])),
            model.layers[layer].register_forward_hook(lambda module, args, output, kept=states: kept.append(output)),
        ]
        model(ids)
        for handle in handles:
            handle.remove()
        (hidden,) = states
    assert_close(mixed(ids).logits, mixed.lm_head(mixed.model.norm(hidden)), **CLOSE)
    assert not torch.allclose(mixed(ids).logits, uniform[0](ids).logits)


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), CACHED, ids=str)
def test_cached_decoding_is_the_full_forward(name: str, options: dict[str, Any], ids: torch.Tensor) -> None:
    model = lab(PATTERNS[name], **options)
    whole = model(ids).logits
    sizes = (4, 1, 1, 5) if name == "prefix" else (1, 4, 1, 5)  # a prefix is read at once
    assert_close(in_chunks(model, ids, sizes), whole, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", PATTERNS)
def test_padding_on_the_left_changes_nothing(name: str, ids: torch.Tensor) -> None:
    model = lab(PATTERNS[name])
    real = torch.ones_like(ids)
    real[0, :3] = 0
    assert_close(model(ids, attention_mask=real).logits[0, 3:], model(ids[:1, 3:]).logits[0], **CLOSE)


def test_a_layer_s_window_is_its_own(ids: torch.Tensor) -> None:
    """Local layers give nothing to keys beyond their window; the layers between do."""
    measured = measure(lab(PATTERNS["windows"]), ids, [AttentionReceived("all")])
    received = measured.data["attention_received"].values[0]  # (layer, head, position)
    with torch.no_grad():
        maps = lab(PATTERNS["windows"])(ids[:1], output_attentions=True).attentions
    for layer, weights in enumerate(maps):
        far = weights[0].tril(-3)
        assert bool((far > 0).any()) == (layer % 2 == 1)
        queries = torch.arange(11, 0, -1).clamp(max=11 if layer % 2 else 3)
        assert_close(torch.tensor(received[layer]), weights[0].sum(-2) / queries, **CLOSE)


def test_it_is_saved_and_loaded(ids: torch.Tensor, tmp_path: Path) -> None:
    model = lab(PATTERNS["operations"])
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.specs == model.config.specs
    assert len(loaded.config.attention) == 4
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.config.attention_name == "sigmoid + kv_bias + softmax_scaled(alpha=0.2)"


def test_a_list_of_one_meaning_is_one_value() -> None:
    """A pattern, the list it stands for, and a list of equal operations."""
    config = LabConfig(num_hidden_layers=4, attention=[LOCAL, "softmax"])
    written = LabConfig(num_hidden_layers=4, attention=(LOCAL, "softmax", LOCAL.to_dict(), "softmax"))
    assert config.attention == written.attention
    assert [spec.mask for spec in config.specs[:2]] == [zoo.Causal() & zoo.Window(3), zoo.Causal()]
    same = LabConfig(num_hidden_layers=4, attention=["sigmoid", "sigmoid"])
    assert same.attention == LabConfig(attention="sigmoid").attention
    assert same.spec == zoo.CATALOG["sigmoid"]
    five = LabConfig(num_hidden_layers=5, attention=[LOCAL, LOCAL, "softmax"])
    assert [spec.mask == zoo.Causal() for spec in five.specs] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attention": []}, "a list of 0 operations for 4 layers"),
        ({"attention": ["softmax"] * 5}, "a list of 5 operations for 4 layers"),
        ({"attention": ["softmax", "sofmax"]}, "did you mean 'softmax'"),
        ({"attention": ["softmax", "gated_value"], "kv_layers": [0, 0, 2, 2]}, "before they are cached"),
        ({"attention": ["softmax", "kernel_mlp"], "position": "alibi"}, "a feature map has none"),
        ({"attention": ["softmax", {"mask": {"kind": "document"}}], "attention_every": 2}, "borders of documents"),
        ({"attention": ["softmax", "stable_mask"], "is_causal": False}, "under a bidirectional mask"),
    ],
)
def test_what_one_layer_cannot_have_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        LabConfig(**{"num_hidden_layers": 4, **options})


def test_one_operation_for_all_is_asked_for_in_vain() -> None:
    with pytest.raises(InputError, match=r"read config\.specs"):
        _ = LabConfig(attention=[LOCAL, "softmax"]).spec


def test_a_llama_has_one_operation() -> None:
    with pytest.raises(
        InputError, match=r"only a softmax model is a Llama; this one's attention is 'custom \+ softmax'"
    ):
        lab([LOCAL, "softmax"]).to_llama()
    model = lab(["softmax", {"mask": {"kind": "full"}}])  # joined with causality: a Llama after all
    ids = torch.randint(1, SIZES["vocab_size"], (1, 9))
    assert_close(model.to_llama()(ids).logits, model(ids).logits, **CLOSE)


def test_a_bidirectional_model_has_windows_of_its_own(ids: torch.Tensor) -> None:
    config = lab([LOCAL, "softmax"], is_causal=False).config
    assert [spec.mask for spec in config.specs[:2]] == [zoo.Window(3), zoo.Full()]
