"""The lab model: the same function however it is run, and a Llama where it is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

import sinkscope.attention as zoo
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM, load

from ..attention.variants import VARIANTS

SIZES = {
    "vocab_size": 53,
    "hidden_size": 32,  # heads of 8: differential attention needs a multiple of 4
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
MASKED = {
    "window": zoo.AttentionSpec(mask=zoo.Causal() & zoo.Window(4)),
    "prefix": zoo.AttentionSpec(mask=zoo.Causal() | zoo.VisiblePrefix(3)),
}
OPERATIONS: dict[str, zoo.AttentionSpec] = {str(variant): variant.spec for variant in VARIANTS} | MASKED
KINDS = {  # an operation for each piece that a host must treat in a way of its own
    "softmax",
    "sigmoid_bias",
    "kernel_mlp",
    "kv_bias",
    "sink_logit-reads_input=True",
    "stable_mask",
    "gated_head",
    "gated_value",
    "qk_norm",
    "scalable_softmax",
    "forgetting_gate",
    "differential",
    *MASKED,
}
Check = Callable[[LabForCausalLM, torch.Tensor, Path], None]
CHECKS: dict[str, Check] = {}
FAST = {"cached_decoding", "left_padding"}
EVERYWHERE = {"cached_decoding", "padded_cached_decoding", "saved_and_loaded"}
"""What an operation can get wrong by itself. The other checks are of the host, for which `KINDS` stand for all."""


def check(function: Check) -> Check:
    """Something that holds for every operation."""
    CHECKS[function.__name__] = function
    return function


def every_case() -> list:
    """All checks under an operation of each kind, and those of `EVERYWHERE` under all operations."""
    return [
        pytest.param(operation, name, marks=() if name in FAST and operation in KINDS else pytest.mark.slow)
        for name in CHECKS
        for operation in OPERATIONS
        if operation in KINDS or name in EVERYWHERE
    ]


def build(attention: str | zoo.AttentionSpec, **sizes: int) -> LabForCausalLM:
    """A model whose attention is far from uniform and whose learned parts are far from their start."""
    model = LabForCausalLM(LabConfig(**SIZES | sizes, attention=attention)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter *= 3
            if "operation" in name:
                parameter.normal_()
    return model


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(1, 53, (2, 13))


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@check
def cached_decoding(model, ids, folder):
    """And prefill in chunks of any size."""
    full = model(ids).logits
    for cuts in ([5, 1, 1, 1, 5], [12, 1], [1] * 4 + [9]):
        if model.config.spec.mask == MASKED["prefix"].mask and cuts[0] < 3:
            continue  # a prefix is seen by its own tokens only when it arrives in one piece
        cache, logits, start = None, [], 0
        for size in cuts:
            step = model(ids[:, start : start + size], past_key_values=cache, use_cache=True)
            cache, start = step.past_key_values, start + size
            logits.append(step.logits)
        assert_same(torch.cat(logits, 1), full)


def padding(model, ids, kept: slice) -> None:
    alone = [model(ids[:1, :9]).logits[0], model(ids[1:]).logits[0]]
    padded, real = ids.clone(), torch.ones_like(ids)
    padded[0], real[0] = 0, 0
    padded[0, kept], real[0, kept] = ids[0, :9], 1
    logits = model(padded, attention_mask=real).logits
    assert_same(logits[0, kept], alone[0])
    assert_same(logits[1], alone[1])


@check
def left_padding(model, ids, folder):
    padding(model, ids, slice(4, None))


@check
def right_padding(model, ids, folder):
    padding(model, ids, slice(None, 9))


@check
def padded_cached_decoding(model, ids, folder):
    """A left-padded row, prefilled and continued token by token, equals its full forward."""
    real = torch.ones_like(ids)
    real[0, :4] = 0
    full = model(ids, attention_mask=real).logits
    step = model(ids[:, :9], attention_mask=real[:, :9], use_cache=True)
    logits = [step.logits]
    for end in range(10, 14):
        step = model(
            ids[:, end - 1 : end],
            attention_mask=real[:, :end],
            past_key_values=step.past_key_values,
        )
        logits.append(step.logits)
    found = torch.cat(logits, 1)
    assert_same(found[0, 4:], full[0, 4:])
    assert_same(found[1], full[1])


@check
def no_future_leak(model, ids, folder):
    """Other tokens later change nothing, to the bit."""
    other = ids.clone()
    other[:, 8:] = torch.randint(1, 53, (2, 5))
    assert torch.equal(model(other).logits[:, :8], model(ids).logits[:, :8])
    assert not torch.equal(model(other).logits[:, 8:], model(ids).logits[:, 8:])


def generation(model, ids, cache: str | None) -> None:
    expected = ids[:, :6]
    for _ in range(6):
        expected = torch.cat([expected, model(expected, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    found = model.generate(
        ids[:, :6],
        attention_mask=torch.ones(2, 6, dtype=torch.long),
        max_new_tokens=6,
        do_sample=False,
        pad_token_id=0,
        cache_implementation=cache,
        disable_compile=True,
    )
    assert torch.equal(found, expected)


@check
def generate(model, ids, folder):
    """Equals greedy decoding by hand."""
    generation(model, ids, None)


@check
def generate_with_a_static_cache(model, ids, folder):
    generation(model, ids, "static")


@check
def generate_left_padded(model, ids, folder):
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids[:1, :6]], 1)
    real = (padded > 0).long()
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    found = model.generate(padded, attention_mask=real, **options)[:, 3:]
    assert torch.equal(found, model.generate(ids[:1, :6], attention_mask=real[:, 3:], **options))


def assert_loaded(loaded, model, ids) -> None:
    assert isinstance(loaded, LabForCausalLM)
    assert loaded.config.spec == model.config.spec
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert_same(loaded(ids).logits, model(ids).logits)


@check
def loaded_by_sinkscope(model, ids, folder):
    model.save_pretrained(folder)
    assert_loaded(load(folder), model, ids)


@check
def saved_and_loaded(model, ids, folder):
    model.save_pretrained(folder)
    assert_loaded(AutoModelForCausalLM.from_pretrained(folder), model, ids)
    assert AutoConfig.from_pretrained(folder).attention == model.config.attention


@check
def embeddings_in_place_of_ids(model, ids, folder):
    embedded = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, model(ids).logits)
    with pytest.raises(InputError, match="exactly one"):
        model(ids, inputs_embeds=embedded)


@check
@torch.enable_grad()
def gradient_checkpointing(model, ids, folder):
    """Changes no gradient, and every parameter has one."""
    model.train()
    expected = torch.autograd.grad(model(ids, labels=ids, use_cache=False).loss, list(model.parameters()))
    newest = hasattr(model, "activation_checkpointing_enable")  # its name since transformers 5.23
    (model.activation_checkpointing_enable if newest else model.gradient_checkpointing_enable)()
    found = torch.autograd.grad(model(ids, labels=ids, use_cache=False).loss, list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.abs().max() > 0


@check
def attentions_and_hidden_states_on_request(model, ids, folder):
    out = model(ids, output_attentions=True, output_hidden_states=True)
    assert [tuple(a.shape) for a in out.attentions] == [(2, 4, 13, 13)] * 2
    assert len(out.hidden_states) == 3
    assert_same(out.logits, model(ids).logits)


@check
def packed_documents(model, ids, folder):
    """Equal documents alone, in one forward and when the second one is decoded from a cache.

    Positions restart: learned keys are not rotated and feature maps act after rotation, so both know absolute ones.
    """
    spec = model.config.spec
    packing = build(replace(spec, mask=spec.mask & zoo.Document()), restart_positions=True)
    packing.load_state_dict(model.state_dict())
    documents = torch.tensor([[0] * 5 + [1] * 8] * 2)
    found = packing(ids, document_ids=documents).logits
    assert_same(found[:, :5], model(ids[:, :5]).logits)
    if spec.mask != MASKED["prefix"].mask:  # the prefix of a row is that of its first document
        assert_same(found[:, 5:], model(ids[:, 5:]).logits)
    prefilled = packing(ids[:, :9], document_ids=documents[:, :9], use_cache=True)
    step = packing(ids[:, 9:], document_ids=documents, past_key_values=prefilled.past_key_values)
    assert_same(step.logits, found[:, 9:])


@torch.no_grad()
@pytest.mark.parametrize(("operation", "name"), every_case())
def test_every_operation(operation, name, ids, tmp_path):
    CHECKS[name](build(OPERATIONS[operation]), ids, tmp_path)


def test_operations_are_in_the_fast_tier():
    assert OPERATIONS.keys() >= KINDS
    assert CHECKS.keys() >= FAST | EVERYWHERE


@torch.no_grad()
def test_packed_documents_equal_documents_alone(ids):
    model = build(zoo.AttentionSpec(mask=zoo.Causal() & zoo.Document()))
    documents = torch.tensor([[0] * 5 + [1] * 8] * 2)
    positions = torch.tensor([[*range(5), *range(8)]])
    packed = model(ids, document_ids=documents, position_ids=positions).logits
    alone = build(zoo.AttentionSpec())
    alone.load_state_dict(model.state_dict())
    expected = torch.cat([alone(ids[:, :5]).logits, alone(ids[:, 5:]).logits], 1)
    torch.testing.assert_close(packed, expected, atol=2e-5, rtol=1e-4)
    shifted = model(ids, document_ids=documents).logits  # rotary positions are relative: a restart changes nothing
    torch.testing.assert_close(shifted, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_softmax_is_a_llama(ids, tied):
    model = build("softmax", tie_word_embeddings=tied, rope_theta=500.0)
    llama = model.to_llama()
    assert isinstance(llama, LlamaForCausalLM)
    torch.testing.assert_close(llama(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(llama(ids, labels=ids).loss, model(ids, labels=ids).loss)
    assert sum(p.numel() for p in llama.parameters()) == sum(p.numel() for p in model.parameters())


def test_other_operations_are_no_llama():
    with pytest.raises(InputError, match="'sigmoid'"):
        build("sigmoid").to_llama()
    with pytest.raises(InputError, match="'custom'"):
        build(MASKED["window"]).to_llama()


def test_other_attention_implementations_are_refused():
    """Otherwise transformers would run softmax on a sigmoid model."""
    for name in ("sdpa", "flash_attention_2", "flex_attention"):
        with pytest.raises((ValueError, ImportError)):
            LabForCausalLM._from_config(LabConfig(**SIZES, attention="sigmoid"), attn_implementation=name)


def test_initialisation_is_the_papers():
    """Linear maps and embeddings sqrt(2 / (5 fan_in)), a SwiGLU's output 1 / (L sqrt(width))."""
    torch.manual_seed(0)
    config = LabConfig(vocab_size=500, hidden_size=128, num_hidden_layers=3, intermediate_size=256, attention="k_bias")
    for name, parameter in LabForCausalLM(config).named_parameters():
        if "norm" in name:
            assert (parameter == 1).all()
            continue
        expected = 256**-0.5 / 3 if "down_proj" in name else (2 / (5 * parameter.shape[1])) ** 0.5
        if "operation" in name:
            expected = 0.02
        assert parameter.std().item() == pytest.approx(expected, rel=0.2), name


def test_published_parameter_counts():
    """tinyllama_60M: 58,998,528 without embeddings, 136,462,080 in all."""
    config = LabConfig(
        vocab_size=50432, hidden_size=768, num_hidden_layers=10, num_attention_heads=8, intermediate_size=1536
    )
    with torch.device("meta"):
        model = LabForCausalLM(config)
    assert sum(p.numel() for p in model.parameters()) == 136_462_080
    assert sum(p.numel() for n, p in model.named_parameters() if "embed" not in n and "lm_head" not in n) == 58_998_528


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hiden_size": 3}, "did you mean 'hidden_size'"),
        ({"attention": "sofmax"}, "did you mean 'softmax'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"hidden_size": 25}, "hidden_size = 25"),
        ({"position": "rotry"}, "did you mean 'rotary'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    ],
)
def test_bad_configurations(fields, words):
    with pytest.raises(InputError, match=words):
        LabConfig(**SIZES | fields)


def test_a_written_mask_is_refused(ids):
    with pytest.raises(InputError, match="attention_mask"):
        build("softmax")(ids, attention_mask=torch.ones(2, 1, 13, 13))


def test_values_are_mixed_with_those_of_the_first_layer() -> None:
    """(1 − λ) v + λ v₀ at every later layer, in values and gradients, with the layer's own λ."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    mixed = LabForCausalLM(LabConfig(**sizes, value_residual=True, num_key_value_heads=2)).eval()
    plain = LabForCausalLM(LabConfig(**sizes, num_key_value_heads=2)).eval()
    left_out = mixed.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert left_out == [f"model.layers.{layer}.self_attn.value_mix.share" for layer in (1, 2)]
    for layer, share in ((1, 0.3), (2, 0.8)):
        nn.init.constant_(mixed.get_parameter(f"model.layers.{layer}.self_attn.value_mix.share"), share)
    ids, first = torch.arange(1, 10)[None], {}

    def mix(share: float) -> Callable[..., Tensor]:
        return lambda module, args, value: (1 - share) * value + share * first["values"] if share else value

    values = [block.self_attn.v_proj for block in plain.model.layers]
    values[0].register_forward_hook(lambda module, args, value: first.update(values=value))
    values[1].register_forward_hook(mix(0.3))
    values[2].register_forward_hook(mix(0.8))
    wanted, found = plain(ids).logits, mixed(ids).logits
    torch.testing.assert_close(found, wanted)
    weights = [model.model.layers[0].self_attn.v_proj.weight for model in (plain, mixed)]
    gradients = [
        torch.autograd.grad(each.square().sum(), weight) for each, weight in zip((wanted, found), weights, strict=True)
    ]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
    shares = [parameter for name, parameter in mixed.named_parameters() if name.endswith("share")]
    assert all(grad.abs() > 0 for grad in torch.autograd.grad(mixed(ids).logits.square().sum(), shares))


def test_logits_are_bounded() -> None:
    sizes = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    torch.manual_seed(0)
    capped = LabForCausalLM(LabConfig(**sizes, logit_softcap=0.5)).eval()
    plain = LabForCausalLM(LabConfig(**sizes)).eval()
    plain.load_state_dict(capped.state_dict())
    ids = torch.arange(1, 10)[None]
    torch.testing.assert_close(capped(ids).logits, 0.5 * torch.tanh(plain(ids).logits / 0.5))
    with pytest.raises(InputError, match=r"its logit_softcap is 0\.5"):
        capped.to_llama()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_softcap": 0}, "logit_softcap = 0: expected a positive number"),
        ({"logit_softcap": True}, "logit_softcap = True"),
        ({"norm_rank": 0}, "norm_rank = 0: expected an integer of at least 1"),
        ({"value_residual": True, "attention_every": 2}, "all must attend"),
        ({"value_residual": True, "kv_layers": [0, 0, 0, 0]}, "values of their own"),
        ({"value_residual": 1}, "value_residual = 1: expected true or false"),
    ],
)
def test_options_that_mean_nothing_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        LabConfig(**fields)
