"""Every option of a block: the same function however it is run, saved, loaded, generated from and measured."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, cache_utils

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM

SIZES = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
VARIANTS = {  # every option at least once; further crossings in the files of their own
    "sandwich": {"norm_placement": "sandwich", "norm": "layernorm", "ffn": "geglu"},
    "post": {"norm_placement": "post", "ffn": "gelu", "head_combination": "add"},
    "outlier_protected": {"norm_placement": "outlier_protected", "ffn": "relu", "attention": "qk_norm"},
    "one_head": {"num_attention_heads": 1, "num_key_value_heads": 1, "norm": "layernorm", "ffn": "reglu"},
    "sigma": {"weight_reparam": "sigma", "head_combination": "add", "ffn": "swish", "ffn_match_parameters": True},
    "bare": {"norm": "none", "ffn": "none"},
    "nanochat": {"value_residual": True, "ffn": "relu_squared", "logit_softcap": 1.5, "attention": "qk_norm"},
    "gated_norms": {"norm": "gated_rmsnorm", "norm_rank": 3, "norm_placement": "sandwich", "value_residual": True},
    "preaffine": {"norm": "preaffine_rmsnorm", "attention": "gated_by_value"},
    "linear": {"norm_placement": "sandwich", "ffn": "linear"},
    "shared_below": {"kv_layers": [0, 0, 2], "residual_gain": 0.5},
    "shared_above": {"kv_layers": [0, 2, 2], "weight_reparam": "sigma"},
    "shared_top": {"kv_layers": [2, 2, 2], "attention": "softmax_off_by_one", "norm_placement": "post"},
    "hybrid": {"attention_every": 2, "attention_offset": 1, "mamba_d_state": 4, "mamba_expand": 1},
    "hybrid_sigma_sigmoid": {
        "attention_every": 3,
        "attention_offset": 2,
        "weight_reparam": "sigma",
        "norm_placement": "post",
        "attention": "sigmoid",
    },
}
PREFIX = {"kind": "or", "first": {"kind": "causal"}, "second": {"kind": "prefix", "length": 3}}
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def build(**fields: object) -> LabForCausalLM:
    """A model far from where it starts: attention far from uniform, norms and Mamba's constants far from ones."""
    model = LabForCausalLM(LabConfig(**SIZES | fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter *= 3
            elif parameter.ndim == 1 or name.endswith(".up"):
                parameter += 0.3 * torch.randn_like(parameter)
    return model


@pytest.fixture(params=VARIANTS)
def model(request: pytest.FixtureRequest) -> LabForCausalLM:
    return build(**VARIANTS[request.param])


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(1, 53, (2, 9))


@pytest.mark.slow
@torch.no_grad()
def test_cached_decoding_and_chunked_prefill_equal_the_full_forward(model, ids):
    full = model(ids).logits
    for cuts in ([4, 1, 1, 3], [1] * 9):
        cache, logits, start = None, [], 0
        for size in cuts:
            step = model(ids[:, start : start + size], past_key_values=cache, use_cache=True)
            cache, start = step.past_key_values, start + size
            logits.append(step.logits)
        torch.testing.assert_close(torch.cat(logits, 1), full, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_equal_the_rows_alone(model, ids, side):
    alone = [model(ids[:1, :5]).logits[0], model(ids[1:]).logits[0]]
    padded, real = ids.clone(), torch.ones_like(ids)
    kept = slice(4, None) if side == "left" else slice(None, 5)
    padded[0], real[0] = 0, 0
    padded[0, kept], real[0, kept] = ids[0, :5], 1
    logits = model(padded, attention_mask=real).logits
    torch.testing.assert_close(logits[0, kept], alone[0], **CLOSE)
    torch.testing.assert_close(logits[1], alone[1], **CLOSE)


@torch.no_grad()
def test_left_padding_in_chunks_equals_the_full_forward(model, ids):
    real = torch.ones_like(ids)
    real[0, :4] = 0
    full = model(ids, attention_mask=real).logits
    cache = DynamicCache(config=model.config)
    if not model.config.supplies[0] and not hasattr(cache_utils, "DummyLayer"):
        pytest.skip("before transformers 5.18 a cache counts its tokens by layer 0, whatever that keeps")
    logits = []
    for chunk in (slice(0, 2), slice(2, 6), slice(6, 7), slice(7, 9)):
        step = model(ids[:, chunk], attention_mask=real[:, : chunk.stop], past_key_values=cache)
        logits.append(step.logits)
    found = torch.cat(logits, 1)
    torch.testing.assert_close(found[0, 4:], full[0, 4:], **CLOSE)
    torch.testing.assert_close(found[1], full[1], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["dynamic", pytest.param("static", marks=pytest.mark.slow)])
def test_generate_equals_greedy_decoding_by_hand(model, ids, cache):
    expected = ids[:, :5]
    with torch.no_grad():
        for _ in range(5):
            expected = torch.cat([expected, model(expected, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
    kind = None if cache == "dynamic" else cache
    real = torch.ones(2, 5, dtype=torch.long)
    found = model.generate(ids[:, :5], attention_mask=real, cache_implementation=kind, **options)
    assert torch.equal(found, expected)


@pytest.mark.slow
def test_left_padded_generation_equals_the_row_alone(model, ids):
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids[:1, :5]], 1)
    real = (padded > 0).long()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    found = model.generate(padded, attention_mask=real, **options)[:, 3:]
    assert torch.equal(found, model.generate(ids[:1, :5], attention_mask=real[:, 3:], **options))


@pytest.mark.slow
def test_saved_and_loaded(model, ids, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {k: v for k, v in loaded.config.to_dict().items() if k in SIZES or k in LabConfig.__dataclass_fields__} == {
        k: v for k, v in model.config.to_dict().items() if k in SIZES or k in LabConfig.__dataclass_fields__
    }
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_it_can_be_made_on_the_meta_device(model):
    with torch.device("meta"):
        empty = LabForCausalLM(model.config)
    assert all(tensor.is_meta for tensor in empty.state_dict().values())
    shapes = {name: tensor.shape for name, tensor in empty.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in model.state_dict().items()}


@pytest.mark.slow
def test_gradient_checkpointing_changes_nothing(model, ids):
    model.train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = torch.autograd.grad(model(ids, labels=ids, use_cache=False).loss, list(model.parameters()))
    model.load_state_dict(state)
    newest = hasattr(model, "activation_checkpointing_enable")  # its name since transformers 5.23
    (model.activation_checkpointing_enable if newest else model.gradient_checkpointing_enable)()
    found = torch.autograd.grad(model(ids, labels=ids, use_cache=False).loss, list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert all(gradient.abs().sum() > 0 for gradient in found)


@torch.no_grad()
def test_measured_attention_is_that_of_the_written_weights(model, ids):
    """Against a loop over the maps that the naive reference writes out; layers without attention have none."""
    maps = model(ids, output_attentions=True).attentions
    attending = [index for index, attends in enumerate(model.config.attends) if attends]
    assert len(maps) == len(attending)
    measured = ss.measure(model, ids).data
    assert measured["layer_index"].values.tolist() == attending
    for layer, weights in enumerate(maps):
        if model.config.spec.metric_weights == "renormalized":
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-8)
        queries = (weights > 0).any(1, keepdim=True).sum(-2)  # 0 for the last key where no token sees itself
        found = torch.from_numpy(measured["attention_received"].values[:, layer])
        torch.testing.assert_close(found, weights.sum(-2) / queries, atol=1e-5, rtol=1e-4, equal_nan=True)


@torch.no_grad()
def test_hidden_norms_are_those_of_the_stream_between_blocks(model, ids):
    streams = []
    layers = model.model.layers
    hooks = [layers[0].register_forward_pre_hook(lambda module, args: streams.append(args[0]))]
    hooks += [layer.register_forward_hook(lambda module, args, output: streams.append(output)) for layer in layers]
    model(ids)
    for hook in hooks:
        hook.remove()
    found = torch.from_numpy(ss.measure(model, ids).data["hidden_norm"].values)
    torch.testing.assert_close(found, torch.stack(streams, 1).norm(dim=-1), atol=1e-4, rtol=1e-4)


def test_no_variant_is_a_llama(model):
    with pytest.raises(InputError, match="Llama"):
        model.to_llama()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"norm": "layer_norm"}, "did you mean 'layernorm'"),
        ({"norm": 3}, "choose from rmsnorm, layernorm, gated_rmsnorm, preaffine_rmsnorm, none"),
        ({"norm_placement": "sandwhich"}, "did you mean 'sandwich'"),
        ({"ffn": "swigl"}, "did you mean 'swiglu'"),
        ({"ffn_match_parameters": "yes"}, "expected true or false"),
        ({"head_combination": "ad"}, "did you mean 'add'"),
        ({"weight_reparam": "sigmoid"}, "did you mean 'sigma'"),
        ({"residual_gain": 0}, "residual_gain = 0"),
        ({"residual_gain": float("nan")}, "residual_gain = nan"),
        ({"residual_gain": "big"}, "residual_gain = 'big'"),
        ({"attention_every": 0}, "attention_every = 0"),
        ({"attention_every": 2.0}, "attention_every = 2.0"),
        ({"attention_every": 2, "attention_offset": 2}, "expected 0 … 1"),
        ({"attention_every": 8, "attention_offset": 5}, "none of 3 layers attends; choose at most 2"),
        ({"attention_every": 2, "mamba_d_state": 0}, "mamba_d_state = 0"),
        ({"kv_layers": [0, 1]}, "expected 3 layer numbers"),
        ({"kv_layers": "top"}, "kv_layers = 'top'"),
        ({"kv_layers": [0, 1, True]}, "expected 3 layer numbers"),
        ({"kv_layers": [0, 3, 2]}, "no layer 3; choose from 0 … 2"),
        ({"kv_layers": [0, 0, 0], "attention_every": 2}, "Mamba"),
        ({"kv_layers": [2, 2, 2], "attention": "qk_norm"}, "'qk_norm'"),
        ({"kv_layers": [2, 2, 2], "is_causal": False}, "causal"),
        ({"kv_layers": [2, 2, 2], "attention": {"mask": PREFIX}}, "causal"),
        ({"kv_layers": [0, 2, 2], "attention": "exclusive"}, "'exclusive' reads each token's own value"),
        ({"kv_layers": [0, 2, 2], "attention": {"output": [{"kind": "own_value_gate"}]}}, "'own_value_gate' reads"),
        ({"kv_iterations": -1}, "kv_iterations = -1"),
        ({"kv_gradient_iterations": 0}, "kv_gradient_iterations = 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3 does not divide .* choose from 1, 2, 4"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0"),
        ({"num_key_value_heads": 8}, "choose from 1, 2, 4"),
        ({"num_attention_heads": True}, "num_attention_heads = True"),
        ({"hidden_size": 26}, "hidden_size = 26 .* nearest that is: 24"),
    ],
)
def test_bad_configurations(fields, words):
    with pytest.raises(InputError, match=words) as caught:
        LabConfig(**SIZES | fields)
    assert "\n" not in str(caught.value)
