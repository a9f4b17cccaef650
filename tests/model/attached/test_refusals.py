"""What cannot be attached is refused in one line that says why, and the model stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

import sinkscope as ss
from sinkscope.attention import (
    AttentionSpec,
    Causal,
    Document,
    Kernel,
    KeySlot,
    LogLength,
    SuffixSlot,
    VisiblePrefix,
    Without,
)
from sinkscope.attention.normalizers import Linear
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import PLACE
from sinkscope.model import LabConfig, LabForCausalLM
from tests.families.registry import FAMILIES
from tests.families.registry.legacy import COLLECTED, REFUSED
from tests.families.sweep.build import build
from tests.model.attached.hosts import host, inputs, output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bloom", "'bloom' has no layer that attends through transformers' AttentionInterface"),
        ("mamba", "'mamba' has no layer that attends through transformers' AttentionInterface"),
        ("t5", "is cross-attention, for which no operation is defined"),
        ("whisper", "is cross-attention, for which no operation is defined"),
        ("bart", "is cross-attention, for which no operation is defined"),
        ("gemma3", "its parts have configurations of their own: attach to a part"),
    ],
)
def test_hosts_that_have_no_place_for_an_operation_are_refused(name: str, words: str) -> None:
    families = FAMILIES | COLLECTED | REFUSED
    model = families[name].build("eager") if name != "gemma3" else build("gemma3")
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        ss.attach(model, "softmax")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_lab_models_and_modules_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="'sinkscope_lab': its layers have operations already"):
        ss.attach(LabForCausalLM(LabConfig(hidden_size=16, num_hidden_layers=1)), "softmax")
    with pytest.raises(UnsupportedModelError, match="not to a Linear"):
        ss.attach(nn.Linear(2, 2), "softmax")
    with pytest.raises(UnsupportedModelError, match="compiled or wrapped takes it before"):
        ss.attach(torch.compile(host("llama"), backend="eager"), "softmax")


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("qwen3", "qk_norm", "family 'qwen3': it normalizes queries and keys itself"),
        ("gemma3_text", "qk_norm", "it normalizes queries and keys itself"),
        ("olmo2", "qk_norm", "family 'olmo2': it normalizes queries and keys itself"),
        ("gpt_oss", "sigmoid", "a learned sink of its own, .* and under 'sigmoid' weights nothing competes"),
        ("gpt_oss", "stable_mask", "which a sliding window hides"),
        ("mistral", "stable_mask", "which a sliding window hides"),
        ("bert", AttentionSpec(slots=(SuffixSlot(),)), "StableMask is for causal attention"),
        ("gemma2", "scalable_softmax", "no feature map, no temperature"),
        ("gemma2", AttentionSpec(similarity=Kernel(feature="elu"), normalizer=Linear()), "no feature map"),
        ("gemma2", AttentionSpec(temperature=LogLength()), "its softcap bounds plain scaled scores"),
        (
            "llama",
            AttentionSpec(mask=Causal() | VisiblePrefix(3)),
            r"'\(causal \| prefix\(3\)\)' needs positions",
        ),
        ("llama", AttentionSpec(mask=Causal() & Document()), "or documents, which it does not pass on"),
        ("llama", AttentionSpec(mask=Causal() & Without((0,))), "a window can be added"),
        ("llama", "differential", "which only lab models do"),
        ("opt", "forgetting_gate", "which only lab models do"),
    ],
)
def test_operations_that_a_host_cannot_do(name: str, spec: AttentionSpec | str, words: str) -> None:
    unchanged(host(name), lambda model: ss.attach(model, spec), UnsupportedModelError, words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: ss.attach(model, "off_by_one"), "unknown attention operation 'off_by_one'"),
        (lambda model: ss.attach(model, {"name": "sink_logit", "inital": 1.0}), "did you mean 'initial'"),
        (lambda model: ss.attach(model, AttentionSpec(slots=(KeySlot(d_a=99),))), "d_a = 99"),
        (lambda model: ss.attach(model, "softmax", start="unchange"), "unknown start .*did you mean 'unchanged'"),
        (lambda model: ss.attach(model, "sink_logit", seed="x"), "seed = 'x'"),  # type: ignore[arg-type]
        (lambda model: ss.attach(model, "sink_logit", seed=-1), "seed = -1"),
        (lambda model: ss.detach(model), "no operation is attached"),
        (lambda model: ss.trainable_only(model), "no attention operation is attached to this model"),
        (lambda model: ss.trainable_only(model, "operaton"), "did you mean 'operation'"),
    ],
)
def test_bad_input(call: Callable[[PreTrainedModel], object], words: str) -> None:
    unchanged(host("llama"), call, InputError, words)


def test_one_operation_at_a_time() -> None:
    model = host("llama")
    ss.attach(model, "softmax")
    with pytest.raises(InputError, match=r"has an operation attached \(softmax attention.*: detach it first"):
        ss.attach(model, "sigmoid")
    ss.detach(model)
    with pytest.raises(InputError, match="no operation is attached"):
        ss.detach(model)


def test_cross_attention_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=31, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    config.add_cross_attention = True
    with pytest.raises(UnsupportedModelError, match="is cross-attention, for which no operation is defined"):
        ss.attach(GPT2LMHeadModel(config), "softmax")


def test_a_layer_that_leaves_its_operation_out_raises() -> None:
    model, given = host("llama"), inputs("llama")
    ss.attach(model, "sigmoid")
    model.set_attn_implementation("sdpa")
    with pytest.raises(UnsupportedModelError, match=r"ran without its attached operation, as .* 'sdpa'"):
        output(model, given)
    model.set_attn_implementation("sinkscope_attached")
    output(model, given)


def test_a_layer_without_an_operation_raises() -> None:
    model, given = host("llama"), inputs("llama")
    model.set_attn_implementation("sinkscope_attached")
    with pytest.raises(UnsupportedModelError, match="LlamaAttention has no operation"):
        output(model, given)


def test_attention_dropout_is_not_left_out_silently() -> None:
    model, given = host("bert"), inputs("bert")
    ss.attach(model, "gated_head")
    output(model, given)
    with pytest.raises(UnsupportedModelError, match=r"attention dropout 0.1, which an operation does not do"):
        output(model.train(), given)


@pytest.mark.parametrize("name", ["s_aux", "sinks", "position_bias", "indices", "block_indices"])
def test_what_a_host_adds_to_its_scores_is_not_left_out_silently(name: str) -> None:
    model, given = host("llama"), inputs("llama")
    ss.attach(model, "softmax")
    with pytest.raises(UnsupportedModelError, match=f"LlamaAttention passes {name} to its attention"), torch.no_grad():
        model(**given, **{name: torch.zeros(1)})


def test_masks_that_say_more_than_who_sees_whom() -> None:
    model, ids = host("llama"), inputs("llama")["input_ids"]
    ss.attach(model, "softmax")
    count = ids.shape[1]
    lower = torch.ones(count, count, dtype=torch.bool).tril()[None, None].expand(len(ids), -1, -1, -1)
    plain = output(model, {"input_ids": ids})
    added = torch.zeros(lower.shape).masked_fill(~lower, torch.finfo(torch.float32).min)
    for mask in (lower, added):
        torch.testing.assert_close(output(model, {"input_ids": ids, "attention_mask": mask}), plain)
    for mask, words in (
        (added + 0.1, "adds numbers to scores"),
        (lower.long(), "ambiguous"),
        (lower.expand(-1, 4, -1, -1), r"is not \(batch, 1, 24 queries, 24 keys\)"),
    ):
        with pytest.raises(UnsupportedModelError, match=words):
            output(model, {"input_ids": ids, "attention_mask": mask})


def unchanged(
    model: PreTrainedModel, call: Callable[[PreTrainedModel], object], error: type[Exception], words: str
) -> None:
    given = inputs(model.config.model_type)
    before, state = output(model, given), list(model.state_dict())
    with pytest.raises(error, match=words) as caught:
        call(model)
    assert "\n" not in str(caught.value)
    assert list(model.state_dict()) == state
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(output(model, given), before)


def test_a_layer_that_raises_keeps_nothing_of_its_input() -> None:
    """Activations would stay in memory, and no copy of the model could be made."""
    model = host("llama")
    ss.attach(model, "sink_logit")
    layer = next(module for module in model.modules() if hasattr(module, "operation"))
    layer.o_proj.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1, 5, dtype=torch.long))
    assert getattr(layer, PLACE) is None


def test_layers_are_numbers() -> None:
    with pytest.raises(InputError, match=r"layers = 1: expected their numbers, such as \[1\]"):
        ss.attach(host("llama"), "sink_logit", layers=1)
